"""Changes to a running deployment take effect between two rounds, are recorded, and a resume makes them again."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import assert_same_weights, events, weights_of
from inside import CLIENTS, NODES, InsideTransport, deployed, federation, service_of, transport

from conftest import refused, toy_task
from mmfl.deployment.control import keep_module
from mmfl.methods import METHODS
from mmfl.runs import changes
from mmfl.runs.changes import ChangeLog, RunChange, request
from mmfl.runs.directory import RunDirectory
from mmfl.runs.layout import ADDED_TASKS
from mmfl.runs.live import read_live

ADDED = """
from conftest import toy_task

def tasks():
    return [toy_task("c", classes=2, lr=0.2)]

def data(task, client):
    return None
"""


def upgraded() -> mmfl.Federation:
    """The federation with the task that is added."""
    old, new = federation(), toy_task("c", classes=2, lr=0.2)
    lacks = np.zeros((CLIENTS, 3), dtype=bool)
    lacks[2, 1] = True
    return mmfl.Federation([*old.tasks, new], CLIENTS, lacks=lacks, task_arrivals={"c": 4})


@pytest.fixture
def place(tmp_path) -> Path:
    RunDirectory.create(tmp_path / "run", {"source": "deployment"})
    (tmp_path / "added.py").write_text(ADDED)
    return tmp_path / "run"


def add_task(place: Path, name: str = "c") -> None:
    request(place, RunChange("add-task", name, keep_module(place, place.parent / "added.py", ADDED_TASKS)))


def exact(nodes: InsideTransport) -> InsideTransport:
    """The nodes, each of which trains in one mode, not in the faster one as it is measured: for the same bits."""
    for service in nodes.services.values():
        service.engine = mmfl.engine.Simulation("cpu", "sequential")
    return nodes


def asking(nodes: InsideTransport, *steps) -> InsideTransport:
    """The nodes, and steps (round, what to do) that are made while a round is under way."""
    todo = dict(steps)

    def trouble(node, round, reply):
        if round in todo:
            todo.pop(round)()
        return reply

    nodes.trouble = trouble
    return nodes


def test_the_rate_and_the_number_of_rounds_change_between_two_rounds(place):
    steps = [(2, lambda: request(place, RunChange("rate", 1.0))), (3, lambda: request(place, RunChange("rounds", 6)))]
    run = deployed("random", 4, rate=0.2, to=asking(transport(), *steps), directory=place)
    assert [record.round for record in run.records] == [1, 2, 3, 4, 5, 6]
    before, after = (
        [sum(len(clients) for clients, _ in record.drawn.values()) for record in half]
        for half in (run.records[:2], run.records[2:])
    )
    assert max(before) < CLIENTS == min(after)
    assert [(change.kind, change.after) for change in ChangeLog(place).made] == [("rate", 2), ("rounds", 3)]
    assert [event["detail"] for event in events(place) if event["kind"] == "control"] == ["rate 1.0", "rounds 6"]
    assert not list((place / "control").iterdir())
    assert "control" not in run.faults


def test_a_task_that_is_added_is_trained_as_one_that_arrives_in_a_simulation(place):
    nodes = transport(upgraded())
    run = deployed("full", 6, to=asking(nodes, (3, lambda: add_task(place))), directory=place)
    same = mmfl.train(upgraded(), "full", 6, 0.5, device="cpu")
    assert_same_weights(run.weights, same.weights)
    assert [list(record.tasks) for record in run.records] == [list(record.tasks) for record in same.records]
    np.testing.assert_allclose(run.accuracy, same.accuracy, atol=1e-6)


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_takes_a_task_in_a_run_and_gives_one_up(method, place):
    steps = [(2, lambda: add_task(place)), (7, lambda: request(place, RunChange("retire-task", "a")))]
    run = deployed(method, 9, rate=1.0, to=asking(transport(upgraded()), *steps), directory=place)
    assert [sorted(record.tasks) for record in run.records] == [["a", "b"]] * 2 + [["a", "b", "c"]] * 5 + [
        ["b", "c"]
    ] * 2
    assert all(np.isfinite(weights).all() for weights in run.weights)
    turns = method == "fedavg"  # one task after another, each for many rounds
    assert turns or any("c" in record.drawn for record in run.records)
    assert not any("a" in record.drawn for record in run.records[7:])


@pytest.mark.parametrize("method", ["mmfl-lvr", "mmfl-stalevre", "forecast", "mfa-rr"])
@pytest.mark.parametrize("stop_at", [2, 3, 5])
def test_a_run_that_was_changed_is_resumed_to_the_same_bits(method, stop_at, place, tmp_path):
    nodes = exact(transport(upgraded()))
    again = tmp_path / "again"
    RunDirectory.create(again, {"source": "deployment"})

    def steps(directory: Path) -> list:
        return [
            (2, lambda: (request(directory, RunChange("rate", 0.9)), add_task(directory))),
            (4, lambda: request(directory, RunChange("retire-task", "b"))),
        ]

    def run(directory: Path, *todo, resume=False) -> mmfl.Run:
        options = {"average": 0.5, "keep_best": True, "checkpoint_every": 2}
        return deployed(method, 6, to=asking(nodes, *todo), directory=directory, resume=resume, **options)

    whole = run(place, *steps(place))
    first, second = dict(steps(again)), dict(steps(again))
    before = first.get(stop_at, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        run(again, *(first | {stop_at: lambda: (before(), (again / "stop").touch())}).items())
    (again / "stop").unlink()
    resumed = run(again, *((round, step) for round, step in second.items() if round > stop_at), resume=True)
    assert [record.drawn for record in resumed.records] == [record.drawn for record in whole.records]
    assert all(torch.equal(*pair) for pair in zip(weights_of(place), weights_of(again), strict=True))


def test_changes_are_made_again_after_the_same_rounds_where_the_newest_checkpoint_is_damaged(place, tmp_path):
    steps = [(2, lambda: add_task(place)), (3, lambda: request(place, RunChange("rate", 1.0)))]
    nodes = exact(transport(upgraded()))
    whole = deployed("mmfl-lvr", 5, to=asking(nodes, *steps), directory=place, checkpoint_every=2)
    expected = [weights.clone() for weights in weights_of(place)]  # not mapped from the file that is damaged
    newest = max((place / "checkpoint").glob("*.json"))
    for file in newest.parent.glob(f"{newest.stem}.*"):
        file.write_bytes(b"damaged")
    resumed = deployed("mmfl-lvr", 5, to=nodes, directory=place, resume=True, checkpoint_every=2)
    assert [record.drawn for record in resumed.records] == [record.drawn for record in whole.records]
    assert all(torch.equal(*pair) for pair in zip(weights_of(place), expected, strict=True))


def test_nodes_lack_an_added_task_until_they_are_restarted_with_it(place):
    nodes = transport()

    def upgrade_one():
        nodes.services[100] = service_of(upgraded(), NODES[100])

    run = deployed("full", 6, to=asking(nodes, (2, lambda: add_task(place)), (4, upgrade_one)), directory=place)
    trained = [set(record.drawn["c"][0]) if "c" in record.drawn else set() for record in run.records]
    assert trained[:4] == [set()] * 4
    assert trained[5] == set(NODES[100])
    assert {event["node"] for event in events(place) if event["kind"] == "changed"} == {"100"}
    assert not any(event["kind"] in ("failed", "garbage") for event in events(place))


def test_a_paused_run_begins_no_round_until_it_goes_on(place):
    stages = []

    def go_on_later(sleep=None):
        stages.append(read_live(place).stage)
        (place / "pause").unlink()

    import mmfl.deployment.control as control

    def sleep(seconds):
        if (place / "pause").exists():
            go_on_later()

    before, control.time.sleep = control.time.sleep, sleep
    try:
        run = deployed("random", 3, to=asking(transport(), (1, (place / "pause").touch)), directory=place)
    finally:
        control.time.sleep = before
    assert stages == ["paused"]
    assert [record.round for record in run.records] == [1, 2, 3]
    told = [event["detail"] for event in events(place) if event["kind"] == "control"]
    assert told == ["paused after round 1", "goes on"]


def test_a_paused_run_can_be_stopped_and_resumed_and_is_still_paused(place):
    def pause():
        (place / "pause").touch()
        (place / "stop").touch()

    with pytest.raises(KeyboardInterrupt):
        deployed("random", 3, to=asking(transport(), (1, pause)), directory=place)
    with pytest.raises(KeyboardInterrupt):  # paused at once, and stopped in the pause
        deployed("random", 3, directory=place, resume=True)
    (place / "stop").unlink()
    (place / "pause").unlink()
    assert len(deployed("random", 3, directory=place, resume=True).records) == 3


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (lambda place: request(place, RunChange("retire-task", "z")), "there is no task 'z' to retire"),
        (lambda place: request(place, RunChange("rounds", 1)), "but round 2 has ended"),
        (lambda place: add_task(place, "d"), "has no task 'd'"),
        (lambda place: add_task(place, "a"), "'a' is in the run already"),
        (lambda place: request(place, RunChange("add-task", "c", "nowhere.py")), "cannot be imported"),
        (lambda place: [request(place, RunChange("retire-task", each)) for each in "ab"], "'b' is the only task left"),
        (lambda place: write(place, "nonsense"), "a request that cannot be read"),
        (lambda place: write(place, '{"kind": "rate", "value": "high"}'), "rate is 'high'"),
        (lambda place: write(place, '{"kind": "explode", "value": 1}'), "no change 'explode'"),
        (lambda place: write(place, json.dumps({"kind": "rate", "value": "1" * 20_000})), "too large"),
    ],
)
def test_what_makes_no_sense_becomes_an_event_and_the_run_goes_on(place, wanted, words):
    run = deployed("random", 4, to=asking(transport(), (2, lambda: wanted(place))), directory=place)
    assert len(run.records) == 4
    assert any(words in event["detail"] for event in events(place) if event["kind"] == "control")
    assert not list((place / "control").iterdir())


def write(place: Path, text: str) -> None:
    (place / "control").mkdir(exist_ok=True)
    (place / "control" / "1.json").write_text(text)


def test_only_the_owner_of_the_run_may_control_it(place, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    with refused("belongs to another user"):
        request(place, RunChange("rate", 0.5))
    monkeypatch.undo()
    write(place, '{"kind": "rate", "value": 0.5}')
    if os.geteuid() == 0:
        os.chown(place / "control" / "1.json", 12345, -1)
        ((_, problem),) = changes.read_requests(place)
        assert "another user" in str(problem)


def test_a_log_of_changes_survives_a_crash_in_the_middle_of_a_line_and_damage_is_said(place):
    log = ChangeLog(place)
    log.add(RunChange("rate", 0.5, id="1", after=2))
    with log.path.open("ab") as file:
        file.write(b'{"kind": "ra')
    again = ChangeLog(place)
    again.add(RunChange("rounds", 9, id="2", after=3))
    assert [change.kind for change in ChangeLog(place).made] == ["rate", "rounds"]
    log.path.write_text('{"kind": "rate"}\n')
    with refused("changes.jsonl is damaged: line 1"):
        ChangeLog(place)
