"""Sweeps: the results are those of single runs, and what is there is not trained again."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import mmfl
from conftest import refused, toy_task
from mmfl.aggregation import Average
from mmfl.allocation import RandomClients
from mmfl.privacy import Privacy
from mmfl.runs.status import read as read_state

EXPERIMENT = """
rounds = 3
rate = 0.5
seeds = 2
methods = ["random", "mmfl-lvr"]
checkpoint_every = 1
[federation]
clients = 6
[[tasks]]
name = "digits"
data = "digits"
model = "logistic"
batch_size = 32
"""
GRID = {"tasks.digits.lr": [0.1, 1.0], "rate": [0.3, 1.0]}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("experiment.toml")
    path.write_text(EXPERIMENT)
    return path


def federation(lr=0.1, clients=4, seed=0):
    return mmfl.Federation([toy_task(lr=lr), toy_task("other", lr=0.2)], clients, seed=seed)


def weights_of(run):
    return torch.cat(list(run.weights))


def parts_of(folder):
    return sorted(path.parent.name for path in Path(folder).glob("*/config.toml"))


def stamps(folder):
    """When the records of each part were last written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in Path(folder).glob("*/metrics.jsonl")}


def records(folder):
    """All records of a sweep but the time they took."""
    lines = [line for path in sorted(Path(folder).glob("*/metrics.jsonl")) for line in path.read_text().splitlines()]
    return [{**json.loads(line), "seconds": None} for line in lines]


class Interrupts(mmfl.Listener):
    """Ctrl-C in a round of the n-th part."""

    def __init__(self, part, round):
        self.left, self.at = part, round

    def begin(self, info):
        self.left -= 1

    def round(self, records):
        if not self.left and records[0].round == self.at:
            raise KeyboardInterrupt


class Fails(Average):
    """Gives weights that are not finite in one round, or none, while a file is there."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def aggregate(self, weights, updates, view, state):
        new, state = super().aggregate(weights, updates, view, state)
        return (new * float("nan") if view.round == self.at and Path("broken").exists() else new), state


def failing(at):
    return mmfl.Method(f"fails-{at}", RandomClients(), Fails(at))


def test_points_in_lockstep_equal_single_runs():
    grid = {"lr": [0.05, 0.5], "rate": [0.25, 1.0], "clients": [4, 9]}
    swept = mmfl.sweep(federation, grid, ["random", "mmfl-lvr"], rounds=4, seeds=2)
    for lr, rate, clients in ((0.05, 1.0, 9), (0.5, 0.25, 4)):
        alone = mmfl.compare(lambda seed: federation(lr, clients, seed), ["random", "mmfl-lvr"], 4, rate, 2)  # noqa: B023
        found = swept.at({"lr": lr, "rate": rate, "clients": clients})
        assert [(run.method, run.seed) for run in found] == [(run.method, run.seed) for run in alone]
        for ours, theirs in zip(found, alone, strict=True):
            np.testing.assert_array_equal(ours.participation, theirs.participation)
            torch.testing.assert_close(weights_of(ours), weights_of(theirs), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-4)
        np.testing.assert_allclose(found.finals(), alone.finals(), atol=0.02)


def test_points_of_a_configuration_equal_runs_with_these_settings(file):
    swept = mmfl.sweep(file, GRID, directory="sweep")
    assert parts_of("sweep") == ["part-1"]
    config = mmfl.runs.config.read(file, ["tasks.digits.lr=1.0", "rate=0.3"])
    alone = mmfl.runs.experiment.conduct(config.experiment(), mmfl.engine.Simulation("cpu"))
    found = swept.at({"rate": 0.3, "tasks.digits.lr": 1.0})
    for ours, theirs in zip(found, alone, strict=True):
        np.testing.assert_array_equal(ours.participation, theirs.participation)
        torch.testing.assert_close(weights_of(ours), weights_of(theirs), rtol=1e-4, atol=1e-5)


def test_points_that_share_no_round_loop_train_in_parts_of_their_own(file):
    swept = mmfl.sweep(file, {"rounds": [1, 2], "rate": [0.5, 1.0], "privacy.clip": [1.0, 5.0]}, directory="sweep")
    assert parts_of("sweep") == ["part-1", "part-2", "part-3", "part-4"]
    assert {len(run.records) for run in swept.at({"rounds": 1, "rate": 1.0, "privacy.clip": 5.0})} == {1}
    assert {len(run.records) for run in swept.at({"rounds": 2, "rate": 0.5, "privacy.clip": 1.0})} == {2}


def test_a_point_that_may_stop_early_trains_as_it_would_alone(file):
    file.write_text(EXPERIMENT.replace("rounds = 3", "rounds = 6") + "[stop]\ntarget = 0.6\n")
    swept = mmfl.sweep(file, {"tasks.digits.lr": [0.01, 5.0]}, ["random"], directory="sweep")
    lengths = [len(swept.at({"tasks.digits.lr": lr}).runs[0].records) for lr in (0.01, 5.0)]
    assert lengths[0] == 6 > lengths[1]


def test_keys_in_another_order_and_other_spellings_are_refused_and_nothing_is_lost(file):
    grid = {"tasks.digits.lr": [0.1, 1.0], "rate": [0.5]}
    before = mmfl.sweep(file, grid, ["random"], directory="sweep").table()
    with refused("keys in the order tasks.digits.lr, rate"):
        mmfl.sweep(file, dict(reversed(grid.items())), ["random"], directory="sweep")
    with refused("0.1, 1.0 for 'tasks.digits.lr'"):
        mmfl.sweep(file, {**grid, "tasks.digits.lr": [0.1, 1, 3]}, ["random"], directory="sweep")
    assert mmfl.load_sweep("sweep").table().equals(before)


def test_a_score_at_one_point_and_an_error_at_another_are_refused(file):
    with refused("task 'digits' has an error at one point and a score at another"):
        mmfl.sweep(file, {"tasks.digits.metric": ["accuracy", "perplexity"]}, ["random"])


def test_no_more_runs_are_in_lockstep_than_save_time(tmp_path):
    mmfl.sweep(federation, {"lr": np.linspace(0.1, 1, 5).tolist()}, ["random"], rounds=1, seeds=30, directory=tmp_path)
    assert parts_of(tmp_path) == ["part-1", "part-2", "part-3"]


def test_options_of_a_method_are_swept_by_its_name(file):
    grid = {"methods.fedstale.beta": [0.2, 0.8]}
    swept = mmfl.sweep(file, grid, ["random", "fedstale"], rounds=2)
    assert swept.table()["method"].tolist() == ["random", "fedstale"] * 2
    low, high = (swept.at({"methods.fedstale.beta": beta}).of("fedstale")[0] for beta in (0.2, 0.8))
    assert not torch.equal(weights_of(low), weights_of(high))


def test_an_interrupted_sweep_goes_on_where_it_was_and_ends_with_the_same_records(file):
    grid = {"rounds": [2, 4], "rate": [0.5, 1.0]}
    mmfl.sweep(file, grid, directory="whole")
    with pytest.raises(KeyboardInterrupt):
        mmfl.sweep(file, grid, directory="sweep", listeners=[Interrupts(2, 3)])
    before = stamps("sweep")
    loaded = mmfl.load_sweep("sweep")
    assert len(loaded.unfinished) == 4
    assert loaded.table()["mean"].isna().sum() == 4
    heard = []

    class Hears(mmfl.Listener):
        def round(self, records):
            heard.append(records[0].round)

    swept = mmfl.sweep(file, grid, directory="sweep", listeners=[Hears()])
    assert heard == [3, 4]
    assert stamps("sweep")["part-1"] == before["part-1"]
    assert records("sweep") == records("whole")
    assert swept.table().equals(mmfl.load_sweep("whole").table())


def test_values_and_methods_can_be_added_and_only_they_are_trained(file):
    mmfl.sweep(file, {"rate": [0.5]}, ["random"], directory="sweep")
    before = stamps("sweep")
    swept = mmfl.sweep(file, {"rate": [0.25, 0.5]}, ["random", "full"], directory="sweep")
    assert parts_of("sweep") == ["part-1", "part-2"]
    assert stamps("sweep")["part-1"] == before["part-1"]
    assert swept.table()[["rate", "method"]].values.tolist() == [
        *([0.25, "random"], [0.25, "full"]),
        *([0.5, "random"], [0.5, "full"]),
    ]
    assert not swept.table()["mean"].isna().any()
    assert {(r["method"], r["round"]) for r in records("sweep")[-9:]} >= {("full (rate=0.5)", 3)}


def test_a_changed_sweep_is_refused_and_nothing_is_trained(file):
    mmfl.sweep(file, {"rate": [0.25, 0.5]}, directory="sweep")
    before = stamps("sweep")
    with refused("sweep 'sweep' has 0.25, 0.5 for 'rate'", "values can only be added"):
        mmfl.sweep(file, {"rate": [0.25]}, directory="sweep")
    with refused("sweep 'sweep' has no values for 'tasks.digits.lr'"):
        mmfl.sweep(file, {"rate": [0.25, 0.5], "tasks.digits.lr": [0.1]}, directory="sweep")
    with refused("sweep 'sweep' has other settings: 'rounds' is 3 there, and 4 here"):
        mmfl.sweep(file, {"rate": [0.25, 0.5]}, directory="sweep", rounds=4)
    with refused("sweep 'sweep' has random, mmfl-lvr for 'methods'"):
        mmfl.sweep(file, {"rate": [0.25, 0.5]}, ["random"], directory="sweep")
    assert stamps("sweep") == before


def test_a_directory_that_holds_something_else_or_is_in_use_is_refused(file):
    Path("used").mkdir()
    Path("used/notes.txt").touch()
    with refused("run directory 'used' exists"):
        mmfl.sweep(file, {"rate": [0.5]}, directory="used")
    mmfl.sweep(file, {"rate": [0.5]}, directory="sweep")
    Path("sweep/lock").write_text('{"pid": 4711, "host": "elsewhere", "birth": "1"}')
    with refused("run 'sweep' is in use by process 4711 on elsewhere"):
        mmfl.sweep(file, {"rate": [0.5]}, directory="sweep")


def test_a_run_that_fails_is_named_and_costs_the_others_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    Path("broken").touch()
    methods = ["random", failing(2)]
    arguments = (federation, {"rate": [0.5, 1.0]}, methods)
    swept = mmfl.sweep(*arguments, rounds=3, directory="sweep", checkpoint_every=1)
    assert list(swept.failures) == ["fails-2 (rate=0.5)", "fails-2 (rate=1.0)"]
    assert all("weights of task 'toy' that are not finite" in reason for reason in swept.failures.values())
    assert "fails-2 (rate=1.0) failed: " in caplog.text
    assert swept.table()["mean"].isna().tolist() == [False, True, False, True]
    assert swept.best()["method"].unique().tolist() == ["random"]
    whole = mmfl.compare(lambda seed: federation(seed=seed), ["random"], 3, 1.0)
    np.testing.assert_allclose(swept.at({"rate": 1.0}).finals(), whole.finals(), atol=0.02)
    assert mmfl.load_sweep("sweep").failures == swept.failures
    assert read_state(Path("sweep/part-1")).condition == "failed"

    os.remove("broken")
    before = stamps("sweep")
    swept = mmfl.sweep(*arguments, rounds=3, directory="sweep", checkpoint_every=1)
    assert not swept.failures
    assert not swept.table()["mean"].isna().any()
    after = stamps("sweep")
    assert {name for name in after if after[name] != before[name]} == {"part-1-2", "part-1-4"}


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(list(mmfl.sweep(federation, {"rate": [0.5, 1.0]}, rounds=1))) == 2
    assert not list(tmp_path.iterdir())


def test_a_federation_is_swept_over_options_of_training():
    swept = mmfl.sweep(federation(), {"rate": [0.5, 1.0], "rounds": [1, 2]}, ["random"])
    assert swept.tasks == ["toy", "other"]
    assert len(swept) == 4


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((federation, {"lrr": [0.1]}), {}, ["'lrr' is no option of training", "did you mean 'lr'?"]),
        ((federation(), {"lr": [0.1]}), {}, ["'lr' is no option of training"]),
        ((federation, {"rate": [0.5]}), {"round": 3}, ["unknown option 'round'", "did you mean 'rounds'?"]),
        ((federation, {"rate": [0.5, 1.5]}), {}, ["sweep, rate=1.5: rate is 1.5; expected a share"]),
        ((federation, {"lr": [0.5, -1]}), {}, ["sweep, lr=-1: task 'toy': lr is -1"]),
        ((federation, {"rate": [0.5]}, ["rndom"]), {}, ["unknown method 'rndom'", "did you mean 'random'?"]),
        ((lambda lr: None, {"lr": [0.5]}), {}, ["the function gives a NoneType; expected an mmfl.Federation"]),
        (("demo", {"rat": [0.5]}), {}, ["with rat=0.5: unknown key 'rat': did you mean 'rate'?"]),
        (("demo", {"tasks.digits.lr": [0.5, "fast"]}), {}, ["with lr=fast: 'tasks.digits.lr' is 'fast'"]),
        (("demo", {"tasks.digts.lr": [0.5]}), {}, ["tasks.digts.lr: no entry 'digts': did you mean 'digits'?"]),
        (("dmo", {"rate": [0.5]}), {}, ["configuration 'dmo' does not exist"]),
        (("demo", {"tasks.digits.name": ["a", "b"]}), {}, ["sweep, name=b: the tasks are ['b',", "at every point"]),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained_or_written(tmp_path, arguments, options, words):
    with refused(*words):
        mmfl.sweep(*arguments, directory=tmp_path / "sweep", **options)
    assert not (tmp_path / "sweep").exists()


# --- stopping early and the best weights, in Python ---


def test_a_sweep_of_a_function_stops_each_point_by_itself_and_keeps_its_best_weights(tmp_path):
    stop = mmfl.Stop(target={"toy": 0.75})
    options = {"rounds": 6, "stop": stop, "keep_best": True, "privacy": Privacy(1e6), "directory": tmp_path / "sweep"}
    grid = {"lr": [0.001, 1.0], "rate": [1.0]}
    result = mmfl.sweep(federation, grid, ["full"], device="cpu", **options)
    slow, fast = (result.at({"lr": lr, "rate": 1.0}).runs[0] for lr in grid["lr"])
    assert (len(slow.records), len(fast.records)) == (6, 1)
    alone = mmfl.train(federation(1.0), "full", 6, 1.0, stop=stop, keep_best=True, device="cpu")
    torch.testing.assert_close(fast.best_weights.weights, alone.best_weights.weights)
    assert fast.module("toy", weights="best") is not None
    before = stamps(tmp_path / "sweep")
    mmfl.sweep(federation, grid, ["full"], device="cpu", **options)
    assert stamps(tmp_path / "sweep") == before
    with refused("has other settings: 'stop' is"):
        mmfl.sweep(federation, grid, ["full"], device="cpu", **{**options, "stop": mmfl.Stop(patience=3)})


def test_rules_to_stop_can_be_values_of_a_grid():
    grid = {"stop": [mmfl.Stop(patience=1, min_delta=10), None]}
    result = mmfl.sweep(federation, grid, ["full"], rounds=4, rate=1.0, device="cpu")
    assert [len(result.at({"stop": stop}).runs[0].records) for stop in grid["stop"]] == [2, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop": {"target": 0.9}}, ["sweep, lr=0.1: stop is {'target': 0.9}", "mmfl.Stop(target=0.9)"]),
        ({"stop": mmfl.Stop(target={"tyo": 1})}, ["sweep, lr=0.1: stop: target names the task 'tyo'"]),
        ({"keep_best": "no"}, ["sweep, lr=0.1: keep_best is 'no'; expected True or False"]),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_before_anything_is_written(options, words, tmp_path):
    with refused(*words):
        mmfl.sweep(federation, {"lr": [0.1, 1.0]}, rounds=1, directory=tmp_path / "sweep", **options)
    assert not (tmp_path / "sweep").exists()
