"""The live state of a deployment: written seldom, whole and bounded, and read whatever the file holds."""

import json

import pytest

from mmfl.runs import live
from mmfl.runs.events import read_events
from mmfl.runs.live import LiveStateWriter, describe_clients, read_live


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def writer(tmp_path, clock):
    return LiveStateWriter(tmp_path, clock)


def test_the_state_says_who_is_there_who_is_late_and_who_left(tmp_path, writer, clock):
    writer.begin_round(1)
    writer.begin_stage("training", 2)
    writer.note_reply(7)
    writer.update({7: ("seven", [0, 1]), 8: ("eight", [4])}, {8}, 1, clients=5, connected=2)
    state = read_live(tmp_path)
    assert [(node.node, node.clients, node.is_late) for node in state.nodes] == [("8", "4", True), ("7", "0-1", False)]
    assert (state.stage, state.messages_out, state.messages_sent, state.nodes[1].last_reply) == ("training", 1, 2, 1000)
    clock.now += 5
    writer.update({7: ("seven", [0, 1])}, set(), 0)
    state = read_live(tmp_path)
    assert [(gone.node, gone.name, gone.left) for gone in state.left] == [("8", "eight", 1005)]
    assert state.nodes[0].since == 1000


def test_pace_and_time_left_follow_the_last_rounds(tmp_path, writer, clock):
    writer.known["rounds"] = 10
    for round in range(1, 4):
        writer.begin_round(round)
        writer.update({}, set(), 0)
        clock.now += 30
    state = read_live(tmp_path)
    assert (state.round_seconds, state.rounds_per_hour, state.seconds_left) == (30, 120, 8 * 30)
    writer.break_off_pace()  # a pause is no round
    writer.begin_round(4)
    clock.now += 2
    writer.update({}, set(), 0)
    assert read_live(tmp_path).seconds_left is None


def test_it_is_written_at_most_once_a_second_but_at_once_where_a_stage_begins(tmp_path, writer, clock):
    writer.update({}, set(), 0, connected=1)
    writer.update({}, set(), 0, connected=2)
    assert read_live(tmp_path).connected == 1
    writer.begin_stage("tests", 1)
    writer.update({}, set(), 0, connected=3)
    assert read_live(tmp_path).connected == 3
    clock.now += 1
    writer.update({}, set(), 0, connected=4)
    assert read_live(tmp_path).connected == 4


def test_it_stays_small_whatever_the_number_of_nodes_and_lists_late_ones_first(tmp_path, writer, clock):
    nodes = {number: (f"node-{number}", range(number, number + 1)) for number in range(5000)}
    writer.update(nodes, {4999}, 0)
    state = read_live(tmp_path)
    assert len(state.nodes) == live.MAX_NODES
    assert (state.nodes[0].node, state.nodes_not_listed) == ("4999", 5000 - live.MAX_NODES)
    clock.now += 2
    writer.update({}, set(), 0)
    assert len(read_live(tmp_path).left) == live.MAX_LEFT
    assert (tmp_path / "live.json").stat().st_size < 200_000


def test_many_clients_are_cut_short():
    assert describe_clients(range(0, 1000, 2)).endswith(", ...")
    assert len(describe_clients(range(0, 1000, 2))) <= 60
    assert describe_clients([]) == ""


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"nodes": 3, "left": []}', '{"nodes": [{}], "left": []}', "null"]
)
def test_a_damaged_file_counts_as_none(tmp_path, content):
    (tmp_path / "live.json").write_text(content)
    assert read_live(tmp_path) is None


def test_a_disk_that_cannot_be_written_does_not_end_the_run(tmp_path, clock):
    LiveStateWriter(tmp_path / "nowhere", clock).update({}, set(), 0)
    LiveStateWriter(None, clock).update({}, set(), 0)


def test_lines_that_are_no_events_are_left_out(tmp_path):
    good = {"time": 1.5, "round": 2, "kind": "late", "node": "7"}
    lines = ["nonsense", json.dumps(good), "[]", '{"time": "x", "round": 1, "kind": "late"}', '{"time": 1']
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    (event,) = read_events(tmp_path)
    assert str(event).endswith("round 2, node 7: late")
    assert read_events(tmp_path / "nowhere") == []
