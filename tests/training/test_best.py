"""The best weights of each task: those of its best tested round, kept through a resume and with batch norm."""

import pytest
import torch
from torch import nn

import mmfl
from conftest import refused


def network() -> nn.Module:
    """A small network with batch norm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


@pytest.fixture(scope="module")
def pool() -> mmfl.Federation:
    """Two tasks whose metric goes up and down: a step that is too long, and an error of which less is better."""
    digits = mmfl.data.digits()
    settings = {"epochs": 1, "batch_size": 20}
    tasks = [
        mmfl.Task("score", network, digits, lr=3.0, **settings),
        mmfl.Task("error", network, digits, lr=3.0, metric="perplexity", **settings),
    ]
    return mmfl.Federation(tasks, clients=8, seed=0)


def measured(pool, run, weights):
    """Test metric of the modules that a run gives."""
    found = []
    for task in pool.tasks:
        with torch.no_grad():
            outputs = run.module(task.name, weights=weights)(task.data.x_test)
        metric = task.main_metric
        found.append(float(metric.value(metric.total(outputs, task.data.y_test))))
    return found


def test_best_weights_are_those_of_the_best_tested_round(pool, tmp_path):
    run = mmfl.train(pool, "random", rounds=8, rate=0.3, keep_best=True, directory=tmp_path / "run", device="cpu")
    accuracy = run.accuracy
    assert run.best["metric"].tolist() == [accuracy["score"].max(), accuracy["error"].min()]
    assert run.best["round"].tolist() == [accuracy["score"].idxmax(), accuracy["error"].idxmin()]
    assert measured(pool, run, "best") == pytest.approx(run.best["metric"].tolist(), rel=1e-5)
    assert measured(pool, run, "current") == pytest.approx(accuracy.iloc[-1].tolist(), rel=1e-5)
    assert (run.best["round"] < 8).any()  # otherwise this shows nothing


def test_best_weights_are_kept_through_a_resume(pool, tmp_path):
    options = {"rate": 0.3, "keep_best": True, "device": "cpu"}
    whole = mmfl.train(pool, "random", rounds=6, **options)
    mmfl.train(pool, "random", rounds=4, directory=tmp_path / "run", checkpoint_every=1, **options)
    resumed = mmfl.train(pool, "random", rounds=6, directory=tmp_path / "run", resume=True, **options)
    for one, other in zip(whole.best_weights.weights, resumed.best_weights.weights, strict=True):
        assert torch.equal(one, other)
    assert (whole.best_weights.round == resumed.best_weights.round).all()


def test_weights_that_were_not_kept_are_asked_for_in_vain(pool):
    run = mmfl.train(pool, "random", rounds=1, rate=0.3, device="cpu")
    with refused("best weights were not kept", "keep_best=True"):
        run.module("score", weights="best")
    with refused("unknown weights 'bset'", "did you mean 'best'"):
        run.module("score", weights="bset")


def test_what_was_kept_is_a_copy(pool):
    run = mmfl.train(pool, "random", rounds=1, rate=0.3, keep_best=True, device="cpu")
    kept = run.best_weights.weights[0].clone()
    run.weights[0].add_(1)
    assert torch.equal(run.best_weights.weights[0], kept)


def test_a_task_that_never_had_a_metric_has_no_best_weights():
    digits = mmfl.data.digits()
    zeros = digits.y_test == 0
    data = mmfl.data.from_arrays(digits.x, digits.y, test=(digits.x_test[zeros], digits.y_test[zeros]))
    task = mmfl.Task("a", mmfl.models.LogisticRegression, data, metric="auc")
    run = mmfl.train(mmfl.Federation([task], 4), "full", rounds=1, keep_best=True, device="cpu")
    assert run.best.empty
    with refused("task 'a' has no best round"):
        run.module("a", weights="best")


def test_what_is_kept_cannot_change_in_the_middle_of_a_run(pool, tmp_path):
    mmfl.train(pool, "random", rounds=1, rate=0.3, directory=tmp_path / "run", device="cpu")
    with refused("checkpoint"):
        mmfl.train(pool, "random", 2, 0.3, directory=tmp_path / "run", resume=True, keep_best=True, device="cpu")
