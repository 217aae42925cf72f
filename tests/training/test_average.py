"""Averaged weights: what a plain loop over the rounds gives, in every setting, tested and kept beside the current."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import mmfl
import prompt
from conftest import refused
from mmfl.runs.config import parse
from mmfl.updates.world import leave

HERE = Path(__file__).parent
OPTIONS = {"rounds": 7, "rate": 0.5, "device": "cpu", "engine": "vectorised"}


def network() -> nn.Module:
    """A small network with batch norm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def federation(batch_norm: str = "shared") -> mmfl.Federation:
    """Three tasks: one linear, one with batch norm, one that arrives in round 3."""
    digits = mmfl.data.digits()
    tasks = [
        mmfl.Task("linear", mmfl.models.LogisticRegression, digits, lr=0.5),
        mmfl.Task("norm", network, digits, lr=0.3, batch_size=20, batch_norm=batch_norm),
        mmfl.Task("late", mmfl.models.LogisticRegression, digits, lr=0.5),
    ]
    return mmfl.Federation(tasks, clients=8, task_arrivals={"late": 3}, seed=0)


class Watch(mmfl.Listener):
    """Copies the weights of every round, and the statistics of batch norm of the second task."""

    def begin(self, info):
        self.info, self.weights, self.statistics = info, [], []

    def round(self, records):
        state = self.info.state(records[0].method, 0)
        self.weights.append([each.clone() for each in state.weights])
        self.statistics.append(state.batch_norm[1].mean().clone())


def plain_loop(average: float, vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The average after each round, by its formula in float64."""
    values, found = [each.double() for each in vectors], []
    for t in range(1, len(values) + 1):
        if average >= 2:
            found.append(sum(values[max(t - average, 0) : t]) / min(t, average))
        else:
            before = found[-1] if found else torch.zeros_like(values[0])
            found.append(before + max(average, 1 / t) * (values[t - 1] - before))
    return found


def score(federation: mmfl.Federation, task: str, module: nn.Module) -> float:
    """Accuracy of a module on the test examples."""
    data = federation.tasks[federation.task_names.index(task)].data
    with torch.no_grad():
        return float((module(data.x_test).argmax(1) == data.y_test).double().mean())


@pytest.mark.parametrize("average", [0.3, 0.01, 3, 20])
def test_an_average_is_what_a_plain_loop_over_the_rounds_gives(average):
    watch, pool = Watch(), federation()
    run = mmfl.train(pool, "random", average=average, listeners=[watch], **OPTIONS)
    for s, begun in enumerate([1, 1, 3]):
        wanted = plain_loop(average, [weights[s] for weights in watch.weights[begun - 1 :]])[-1]
        torch.testing.assert_close(run.average_weights.weights[s].value().double(), wanted, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(run.weights[s].double(), wanted, rtol=1e-4)  # otherwise this shows nothing
    statistics = plain_loop(average, watch.statistics)[-1]
    torch.testing.assert_close(run.average_weights.statistics(1).double(), statistics, rtol=1e-5, atol=1e-6)
    state = run.module("norm", weights="average").state_dict()
    assert torch.allclose(torch.cat([state["2.running_mean"], state["2.running_var"]]).double(), statistics, rtol=1e-4)


@pytest.mark.parametrize("average", [0.3, 3])
def test_every_round_tests_the_average_of_the_rounds_so_far(average):
    watch, pool = Watch(), federation()
    run = mmfl.train(pool, "random", average=average, listeners=[watch], **OPTIONS)
    module = pool.tasks[0].build(0, 0)
    for t, vector in enumerate(plain_loop(average, [weights[0] for weights in watch.weights]), 1):
        nn.utils.vector_to_parameters(vector.float(), module.parameters())
        assert run.average.loc[t, "linear"] == pytest.approx(score(pool, "linear", module), abs=3e-3)
    assert run.average["linear"].iloc[0] == run.accuracy["linear"].iloc[0]  # of one round it is that round
    assert (run.average["linear"] != run.accuracy["linear"]).any()
    assert run.average["late"].isna().tolist() == [True, True, False, False, False, False, False]
    for task in pool.task_names:
        assert run.average[task].iloc[-1] == pytest.approx(score(pool, task, run.module(task, weights="average")))
    last = run.records[-1]
    assert last.average_mean == pytest.approx(run.average.iloc[-1].mean())
    assert last.average_worst == pytest.approx(run.average.iloc[-1].min())
    assert run.frame("average_loss").notna().sum().tolist() == [7, 7, 5]


def test_only_tested_rounds_test_the_average_and_all_count(tmp_path):
    often, seldom = (
        mmfl.train(federation(), "random", average=0.3, evaluate_every=every, **OPTIONS) for every in (1, 3)
    )
    assert seldom.average.index.tolist() == [3, 6, 7]
    assert seldom.average.equals(often.average.loc[[3, 6, 7]])


def test_without_an_average_records_are_what_they_were_and_with_one_all_else_is(tmp_path):
    kept = {}
    for name, average in (("none", None), ("some", 0.3)):
        mmfl.train(federation(), "random", average=average, directory=tmp_path / name, **OPTIONS)
        kept[name] = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    assert "average" not in json.dumps(kept["none"])
    for none, some in zip(kept["none"], kept["some"], strict=True):
        del none["seconds"], some["seconds"], some["average_mean"], some["average_worst"]
        for task in some["tasks"].values():
            del task["average_metric"], task["average_loss"]
        assert none == some
    run = mmfl.load(tmp_path / "none").runs[0]
    assert (run.average.empty, list(run.summary)) == (True, ["mean", "worst"])
    assert len(mmfl.load(tmp_path / "some").runs[0].average) == 7


def same_bits(one: mmfl.Run, other: mmfl.Run) -> None:
    for s in range(3):
        assert torch.equal(one.average_weights.weights[s].value(), other.average_weights.weights[s].value())
    assert torch.equal(one.average_weights.statistics(1), other.average_weights.statistics(1))
    assert one.average.equals(other.average)
    assert one.frame("average_loss").equals(other.frame("average_loss"))


@pytest.mark.parametrize("average", [0.3, 3])
def test_a_resumed_run_has_the_same_average_to_the_bit(average, tmp_path):
    whole = mmfl.train(federation(), "random", average=average, **OPTIONS)
    place = {"directory": tmp_path / "run", "average": average}
    mmfl.train(federation(), "random", **{**OPTIONS, "rounds": 4}, **place)
    resumed = mmfl.train(federation(), "random", resume=True, **OPTIONS, **place)
    same_bits(whole, resumed)
    other = {"average": 0.2 if average < 1 else 4}
    with refused("belongs to another run"):
        mmfl.train(federation(), "random", resume=True, **OPTIONS, **(place | other))


def test_runs_in_lockstep_have_the_averages_that_each_has_alone():
    pool = federation()
    together = mmfl.compare(pool, ["random", "mmfl-lvr"], seeds=[0, 1], average=0.3, **OPTIONS)
    alone = mmfl.train(pool, "mmfl-lvr", seed=1, average=0.3, **OPTIONS)
    same_bits(together["mmfl-lvr", 1], alone)


def two_processes(folder: Path) -> None:
    """What each of two processes does; both store what they have."""
    torch.set_num_threads(1)
    run = mmfl.train(federation(), "random", average=3, **OPTIONS)
    found = {str(s): run.average_weights.weights[s].value() for s in range(3)}
    found["norm"] = run.average_weights.statistics(1)
    tested = torch.tensor(run.average.fillna(-1).to_numpy().tolist())
    save_file({**found, "tested": tested}, folder / f"{os.environ['RANK']}.safetensors")
    leave()


@pytest.mark.long
def test_two_processes_have_the_same_average_as_one(tmp_path):
    paths = f"sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]"
    program = f"import sys, pathlib; {paths}; from test_average import two_processes; two_processes(pathlib.Path('.'))"
    done = prompt.together(2, cwd=tmp_path, program=program)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    run = mmfl.train(federation(), "random", average=3, **OPTIONS)
    for name, values in first.items():
        assert torch.equal(values, second[name])
    for s in range(3):
        torch.testing.assert_close(first[str(s)], run.average_weights.weights[s].value(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first["tested"].numpy(), run.average.fillna(-1).to_numpy(), atol=6e-3)


def test_batch_norm_of_clients_is_not_averaged():
    run = mmfl.train(federation("local"), "random", average=0.3, **OPTIONS)
    assert run.average_weights.batch_norm == [None, None, None]
    current, average = (run.module("norm", weights=kind).state_dict() for kind in ("current", "average"))
    assert torch.equal(current["2.running_var"], average["2.running_var"])
    assert not torch.equal(current["1.weight"], average["1.weight"])


def test_an_average_is_exported(tmp_path):
    run = mmfl.train(federation(), "random", average=0.3, **OPTIONS)
    run.export("norm", tmp_path / "model.safetensors", weights="average")
    for name, values in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(values, run.module("norm", weights="average").state_dict()[name])


def test_weights_that_are_not_there_are_asked_for_in_vain():
    run = mmfl.train(federation(), "random", **{**OPTIONS, "rounds": 2})
    with refused("weights were not averaged", "average=0.1"):
        run.module("linear", weights="average")
    with refused("unknown weights 'averaged'", "average"):
        run.module("linear", weights="averaged")
    run = mmfl.train(federation(), "random", average=2, **{**OPTIONS, "rounds": 2})
    with refused("task 'late' has no averaged weights", "not arrived"):
        run.module("late", weights="average")


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, -0.1, 1.5, 2.0, -3, True, "0.1", float("nan"), float("inf"), [0.1]])
def test_an_average_that_is_neither_a_rate_nor_a_number_of_rounds_is_refused(value):
    with refused(f"average is {value!r}", "a rate between 0 and 1, or a whole number of rounds from 2"):
        mmfl.train(federation(), "random", rounds=1, average=value)


def test_a_window_that_does_not_fit_in_memory_is_refused():
    with refused("GB of memory"):
        mmfl.train(federation(), "random", rounds=1, average=10**9)


@pytest.mark.parametrize("value", ["fast", [0.1], True])
def test_a_configuration_with_an_average_of_another_kind_is_refused(value):
    with refused("average"):
        parse({"average": value}, "here")


def test_a_configuration_averages(tmp_path):
    table = {"name": "digits", "data": "digits", "model": "logistic"}
    for value in (0.1, 5):
        config = parse({"tasks": [table], "federation": {"clients": 4}, "average": value}, "here")
        assert config.experiment().average == value


def test_a_sweep_over_averages_trains_in_lockstep_and_shows_them(tmp_path):
    found = mmfl.sweep(
        federation(), {"average": [0.1, 0.5, 3]}, ["random"], rounds=4, rate=0.5, directory=tmp_path, device="cpu"
    )
    table = found.table()
    assert table["mean"].nunique() == 1
    assert table["average_mean"].nunique() == 3
    assert found.edges() == []
    assert len(list(tmp_path.glob("*/metrics.jsonl"))) == 1
    for value, shown in zip([0.1, 0.5, 3], table["average_mean"], strict=True):
        alone = mmfl.train(federation(), "random", rounds=4, rate=0.5, average=value, device="cpu")
        assert shown == pytest.approx(alone.final()["average_mean"], abs=1e-6)
    assert list(mmfl.sweep(federation(), {"rate": [0.5]}, ["random"], rounds=1).table())[-1] == "worst_spread"
