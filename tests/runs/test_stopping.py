"""Runs that end before their last round: at a target, when nothing improves, after some time; also when resumed."""

import numpy as np
import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.record import RoundRecord, TaskRecord
from mmfl.runs.status import read as read_status
from mmfl.runs.stopping import Progress, Stop


def records(round, **metrics):
    """A round of one method and two seeds, of which the second is a little worse."""
    return [
        RoundRecord(
            round,
            "random",
            seed,
            tasks={name: TaskRecord(metric=None if m is None else m - 0.1 * seed) for name, m in metrics.items()},
        )
        for seed in (0, 1)
    ]


def progress(stop, lower=(), clock=lambda: 0.0):
    return Progress(stop, {name: name in lower for name in ("a", "b")}, clock)


def test_a_target_is_reached_once_every_task_and_seed_has_had_it_even_in_different_rounds():
    on_the_way = progress(Stop(target=0.6))
    on_the_way.add(records(1, a=0.65, b=0.9))
    assert not on_the_way.reason()  # the second seed's a is 0.55
    on_the_way.add(records(2, a=0.7, b=0.2))
    assert "reached" in on_the_way.reason()


def test_a_target_may_name_some_tasks_and_an_error_reaches_it_from_above():
    on_the_way = progress(Stop(target={"b": 0.5}), lower="b")
    on_the_way.add(records(1, a=0.0, b=0.7))
    assert not on_the_way.reason()
    on_the_way.add(records(2, a=0.0, b=0.4))
    assert on_the_way.reason()


def test_patience_counts_rounds_without_a_gain_of_any_task():
    on_the_way = progress(Stop(patience=3, min_delta=0.05))
    on_the_way.add(records(1, a=0.5, b=0.5))
    on_the_way.add(records(2, a=0.54, b=None))  # too little, and not tested
    on_the_way.add(records(3, a=0.4, b=0.6))  # b is better
    for round in (4, 5):
        on_the_way.add(records(round, a=0.5, b=0.6))
        assert not on_the_way.reason()
    on_the_way.add(records(6, a=0.54, b=0.6))
    assert on_the_way.reason() == "no task has improved for 3 rounds"


def test_patience_waits_for_tests_and_for_tasks_that_arrive_late():
    on_the_way = progress(Stop(patience=2))
    for round in range(1, 8):
        on_the_way.add(records(round, a=None, b=None))
        assert not on_the_way.reason()
    for round in range(8, 15):
        on_the_way.add(records(round, a=0.5))
        assert not on_the_way.reason()  # b is not there yet
    on_the_way.add(records(15, a=0.5, b=0.1))
    on_the_way.add(records(17, a=0.5, b=0.1))
    assert on_the_way.reason()


def test_small_gains_add_up_to_an_improvement():
    on_the_way = progress(Stop(patience=3, min_delta=0.01))
    for round in range(1, 20):
        on_the_way.add(records(round, a=0.5 + 0.009 * round, b=0.5))
        assert not on_the_way.reason()


def test_time_is_measured_from_the_beginning():
    now = [10.0]
    on_the_way = progress(Stop(seconds=5), clock=lambda: now[0])
    assert not on_the_way.read_clock()
    now[0] = 15.0
    assert not on_the_way.reason()  # of a round that may not have been tested
    assert on_the_way.read_clock()
    assert on_the_way.reason() == "5 seconds have passed"


def test_the_last_round_of_a_run_whose_time_is_up_is_tested(easy, tmp_path):
    pool, accuracy = easy
    options = {"rounds": 6, "evaluate_every": 6, "keep_best": True, "device": "cpu"}
    run = mmfl.train(pool, "full", stop=Stop(seconds=1e-9), directory=tmp_path / "run", **options)
    assert [record.round for record in run.records] == [1]
    np.testing.assert_array_equal(run.accuracy, accuracy[:1])
    assert run.best["round"].tolist() == [1, 1]
    assert "1e-09 seconds have passed" in (tmp_path / "run" / "log.txt").read_text()


@pytest.fixture
def easy():
    """A task that every round improves, and its metric after each of six rounds."""
    pool = mmfl.Federation([toy_task("a", lr=0.05), toy_task("b", classes=3, lr=0.02)], clients=5, seed=0)
    return pool, mmfl.train(pool, "full", rounds=6, device="cpu").accuracy


def test_a_run_stops_at_its_target_and_says_so(easy, tmp_path):
    pool, accuracy = easy
    target = {name: float(accuracy[name].iloc[:3].max()) for name in accuracy}
    first = max(int((accuracy[name] >= target[name]).idxmax()) for name in accuracy)
    run = mmfl.train(pool, "full", rounds=6, device="cpu", stop=Stop(target=target), directory=tmp_path / "run")
    assert run.records[-1].round == first < 6
    status = read_status(tmp_path / "run")
    assert (status.condition, status.round) == ("finished", first)
    assert "reached their targets" in (tmp_path / "run" / "log.txt").read_text()
    again = mmfl.train(
        pool, "full", rounds=6, device="cpu", stop=Stop(target=target), directory=tmp_path / "run", resume=True
    )
    assert again.records == run.records
    further = mmfl.train(pool, "full", rounds=6, device="cpu", directory=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(further.accuracy, accuracy)


def test_patience_remembers_the_rounds_before_a_resume(easy, tmp_path):
    pool, _ = easy
    stop = Stop(patience=2, min_delta=10)  # nothing ever improves by so much
    begun = mmfl.train(pool, "full", rounds=2, device="cpu", directory=tmp_path / "run")
    assert len(begun.records) == 2
    run = mmfl.train(pool, "full", rounds=6, device="cpu", stop=stop, directory=tmp_path / "run", resume=True)
    assert run.records[-1].round == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "high"}, ["stop: target is 'high'", "a number"]),
        ({"target": {}}, ["target is {}"]),
        ({"target": float("nan")}, ["target is nan"]),
        ({"min_delta": 0.1}, ["stop: min_delta is 0.1", "a patience"]),
        ({"patience": 0}, ["stop: patience is 0", "at least 1"]),
        ({"min_delta": -1}, ["min_delta is -1"]),
        ({"seconds": 0}, ["seconds is 0", "positive"]),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(options, words):
    with refused(*words):
        Stop(**options)


def test_a_target_of_an_unknown_task_is_refused_before_training(tmp_path):
    with refused("stop: target names the task 'tow'", "did you mean 'toy'"):
        mmfl.train(
            mmfl.Federation([toy_task("toy")], 4), rounds=1, stop=Stop(target={"tow": 1}), directory=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()
