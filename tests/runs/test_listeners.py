"""Listeners: what they are told, what they can read, and how they stop a run."""

from unittest.mock import Mock

import pytest
import torch
from toy_runs import Heard

import mmfl
from conftest import refused, toy_task
from mmfl.runs import status
from mmfl.runs.status import RunEnd


def compare(*listeners, **options) -> mmfl.Comparison:
    tasks = [mmfl.Task(name, mmfl.models.LogisticRegression, mmfl.data.digits(), lr=0.2) for name in ("a", "b")]
    settings = {"rounds": 4, "rate": 0.5, "seeds": [3, 5], "checkpoint_every": 9, **options}
    return mmfl.compare(mmfl.Federation(tasks, clients=6), ["random", "full"], listeners=listeners, **settings)


def test_a_listener_is_told_about_the_run_and_that_it_finished(tmp_path):
    heard = Heard()
    compare(heard, directory=tmp_path / "run")
    info = heard.info
    assert info.replicas == [("random", 3), ("random", 5), ("full", 3), ("full", 5)]
    assert (info.tasks, info.clients, info.rate, info.first, info.rounds) == (["a", "b"], 6, 0.5, 1, 4)
    assert (info.directory, info.config["source"], info.config["seeds"]) == (tmp_path / "run", "python", [3, 5])
    assert info.config["federation"]["clients"] == 6
    assert [(task["name"], task["lr"]) for task in info.config["tasks"]] == [("a", 0.2), ("b", 0.2)]
    assert (heard.rounds, heard.ended) == ([1, 2, 3, 4], RunEnd("finished"))


def test_a_listener_reads_the_current_weights_of_a_method_and_seed():
    seen = []
    heard = Heard(at=4, act=lambda info: seen.append(info.weights("full", 5)))
    run = compare(heard).of("full")[1]
    assert list(seen[0]) == ["a", "b"]
    assert all(map(torch.equal, seen[0].values(), run.weights))


def test_a_run_that_a_listener_stops_returns_its_rounds_and_can_be_resumed(tmp_path):
    heard = Heard(at=2, act=lambda info: info.request_stop("good enough"))
    stopped = compare(heard, directory=tmp_path / "run")
    assert [len(run.records) for run in stopped] == [2] * 4
    assert (heard.rounds, heard.ended) == ([1, 2], RunEnd("stopped", "good enough"))
    state = status.read(tmp_path / "run")
    assert (state.condition, state.round) == ("stopped", 2)
    assert "stopped after round 2 (good enough)" in (tmp_path / "run" / "log.txt").read_text()
    again = Heard()
    resumed, whole = compare(again, directory=tmp_path / "run", resume=True), compare()
    assert (again.info.first, again.rounds, again.ended) == (3, [3, 4], RunEnd("finished"))
    for mine, theirs in zip(resumed, whole, strict=True):
        assert all(map(torch.equal, mine.weights, theirs.weights))


def test_a_stop_that_is_asked_for_in_the_last_round_changes_nothing():
    heard = Heard(at=4, act=lambda info: info.request_stop())
    assert len(compare(heard).runs[0].records) == 4
    assert heard.ended == RunEnd("finished")


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (KeyboardInterrupt(), RunEnd("stopped", "interrupted")),
        (MemoryError("all gone"), RunEnd("failed", "MemoryError: all gone")),
        (mmfl.UserError("no such thing."), RunEnd("failed", "no such thing.")),
    ],
)
def test_listeners_hear_why_a_run_ended(error, end):
    heard, other = Heard(at=3, act=Mock(side_effect=error)), Heard()
    with pytest.raises(type(error)):
        compare(heard, other)
    assert heard.ended == other.ended == end


@pytest.mark.parametrize("listeners", [print, [print], mmfl.Listener(), [mmfl.Listener], None])
def test_what_is_no_list_of_listeners_is_refused(listeners):
    pool = mmfl.Federation([toy_task("toy")], 4)
    with refused("listeners is ", "a list of objects of classes that derive from mmfl.Listener"):
        mmfl.train(pool, rounds=1, listeners=listeners)
    with refused("listeners is "):
        mmfl.sweep(pool, {"rate": [0.5]}, rounds=1, listeners=listeners)
