"""Losses of clients and test results equal what one computes by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds import KINDS, recurrent, transformer
from small import CLASSES, SIZES, TOKENS, VECTORS, Model, ask, federation, normal, numbers, task, train
from torch import Tensor, nn

from mmfl import models
from mmfl.data import Dataset
from mmfl.engine import Simulation, Workload, measurer
from mmfl.engine.gpu.recorder import Recorder, Replay
from mmfl.engine.measurer import Measurer
from mmfl.federation import Federation
from mmfl.federation.objectives import absolute_error, accuracy, next_token, squared_error
from mmfl.federation.task import Task

TASKS: dict[str, Task] = {
    "perceptron": task(lambda: models.Perceptron(6, 5, 3)),
    "dropout, which rests": task(lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout())),
    "attention, whose dropout rests": task(transformer, TOKENS),
    "recurrence, whose dropout rests": task(lambda: recurrent(nn.GRU, num_layers=2, dropout=0.4), TOKENS),
    "regression": task(
        lambda: nn.Linear(6, 2), VECTORS, normal(100, 2, seed=3), loss=squared_error, metric=absolute_error
    ),
    "tokens": task(lambda: models.CharacterLSTM(5, 4, 3), TOKENS, numbers(5, 100, 5, seed=2), loss=next_token),
    "batch norm": task(lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3))),
}
every_task = pytest.mark.parametrize("kind", TASKS)


def measured(pool: Federation, client: np.ndarray, engine: Simulation | None = None) -> tuple[Simulation, Workload]:
    engine = engine or Simulation("cpu")
    return engine, Workload(pool, 0, engine.initial(pool, 0, seed=1), np.asarray(client))


def mean_by_hand(one: Task, objective, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(objective(one.build(seed=1, task=0).eval()(x), y).double().mean())


def losses_by_hand(pool: Federation, client) -> list[float]:
    (one,) = pool.tasks
    rows = [pool.shards[0].of(i) for i in client]
    return [mean_by_hand(one, one.loss, one.data.x[r], one.data.y[r]) for r in rows]


CLIENTS = (range(6), [1], [0, 2, 5], [5, 1, 2], [5, 4, 3, 2, 1, 0])


@pytest.mark.parametrize(("client", "rows"), [*((each, 1000) for each in CLIENTS), *((range(6), n) for n in (1, 3, 7))])
@every_task
def test_losses_are_the_mean_over_each_clients_own_data(kind, client, rows, monkeypatch):
    """However many examples pass at once."""
    monkeypatch.setattr(measurer, "forward_batch_size", lambda architecture, device: rows)
    pool = federation(TASKS[kind], sizes=(9, 5, 4, 2, 12, 7))
    engine, workload = measured(pool, client)
    np.testing.assert_allclose(engine.losses([workload])[0], losses_by_hand(pool, client), rtol=1e-5)


def test_losses_of_several_requests_come_in_their_order():
    pool = federation(TASKS["perceptron"])
    engine, some = measured(pool, [1, 3])
    other = replace(some, weights=engine.initial(pool, 0, seed=2))
    both = engine.losses([some, other])
    np.testing.assert_allclose(both[0], losses_by_hand(pool, [1, 3]), rtol=1e-5)
    np.testing.assert_array_equal(both[1], engine.losses([other])[0])
    assert not np.allclose(both[0], both[1])


def batching(record: Callable[[Replay], Replay] | None = None) -> Simulation:
    """An engine that batches forward passes wherever a GPU would, and records them if it is told how."""
    engine = Simulation("cpu")
    engine.measurer = Measurer(
        engine.measurer.device_data, batched=True, recorder=Recorder(record, enabled=record is not None)
    )
    return engine


@pytest.mark.parametrize(("rows", "record"), [(5, None), (1000, None), (1000, lambda run: run)])
@pytest.mark.parametrize("kind", KINDS)
def test_batched_losses_of_tasks_are_those_of_each_alone(kind, rows, record, monkeypatch):
    monkeypatch.setattr(measurer, "forward_batch_size", lambda architecture, device: rows)
    pool = federation(replace(KINDS[kind], name="a"), replace(KINDS[kind], name="b"))
    engine, alone = batching(record), Simulation("cpu")
    clients = [np.array([4, 1, 3]), np.array([0, 2, 5]), np.array([5])]
    weights = [engine.initial(pool, s, seed) for s, seed in ((0, 1), (1, 1), (0, 2))]
    workloads = [Workload(pool, s, w, c) for s, w, c in zip((0, 1, 0), weights, clients, strict=True)]
    for _ in range(2):
        for workload, mine in zip(workloads, engine.losses(workloads), strict=True):
            np.testing.assert_allclose(mine, alone.losses([workload])[0], rtol=1e-4)
    architecture = engine.architecture(pool.tasks[0])
    assert architecture.functional.module.training
    if record:
        assert bool(engine.measurer.recorder._recordings) == engine.measurer.can_batch(architecture)


def test_losses_that_cannot_be_recorded_are_batched_nevertheless(caplog):
    def fails(run):
        raise RuntimeError("not while capturing")

    pool, engine = federation(TASKS["perceptron"]), batching(fails)
    workload = measured(pool, range(6), engine)[1]
    for _ in range(2):
        np.testing.assert_allclose(engine.losses([workload])[0], losses_by_hand(pool, range(6)), rtol=1e-5)
    assert [record.getMessage() for record in caplog.records] == [
        "t cannot be recorded, so its kernels are started one by one (not while capturing)"
    ]
    assert not engine.measurer._not_batchable


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_finds_the_same_losses(kind):
    pool = federation(replace(KINDS[kind], name="a"), replace(KINDS[kind], name="b"))
    there, here = Simulation("cuda"), Simulation("cpu")
    asked = [(s, np.array(clients), here.initial(pool, s, seed=1)) for s, clients in ((0, [4, 1, 3]), (1, [0, 2]))]
    got = there.losses([Workload(pool, s, weights.cuda(), clients) for s, clients, weights in asked])
    expected = here.losses([Workload(pool, s, weights, clients) for s, clients, weights in asked])
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3)


def test_what_cannot_be_batched_is_tried_once():
    def each_by_itself(model, x):
        return model.part(x) * (2.0 if x.sum().item() > 1e9 else 1.0)  # nobody knows the sums of a cohort

    pool, engine = federation(task(lambda: Model(each_by_itself, part=nn.Linear(6, 3)))), batching()
    workload = measured(pool, range(6), engine)[1]
    for _ in range(2):
        np.testing.assert_allclose(engine.losses([workload])[0], losses_by_hand(pool, range(6)), rtol=1e-5)
    assert len(engine.measurer._not_batchable) == 1


@every_task
def test_evaluation_is_the_mean_loss_and_metric_over_a_shared_test_set(kind, monkeypatch):
    monkeypatch.setattr(measurer, "forward_batch_size", lambda architecture, device: 7)
    pool = federation(TASKS[kind])
    (one,) = pool.tasks
    engine, workload = measured(pool, [])
    (result,) = engine.evaluate([workload])
    assert result.loss == pytest.approx(mean_by_hand(one, one.loss, one.data.x_test, one.data.y_test), rel=1e-5)
    assert result.metric == pytest.approx(mean_by_hand(one, one.metric, one.data.x_test, one.data.y_test), rel=1e-5)


@pytest.mark.parametrize("kind", ["perceptron", "batch norm"])
def test_only_the_test_rows_of_the_federations_clients_count(kind):
    owner, owner_test = np.arange(80) % 7, np.arange(20) % 7
    data = Dataset("owned", VECTORS[:80], CLASSES[:80], VECTORS[80:], CLASSES[80:], owner, owner_test)
    one = replace(TASKS[kind], data=data)
    pool = Federation([one], clients=3)
    chosen = {int(owner[pool.shards[0].of(client)[0]]) for client in range(3)}
    engine, workload = measured(pool, [])
    (result,) = engine.evaluate([workload])
    rows = [np.flatnonzero(owner_test == o) for o in sorted(chosen)]
    batches = rows if kind == "batch norm" else [np.concatenate(rows)]
    for objective, got in ((one.loss, result.loss), (accuracy, result.metric)):
        means = [mean_by_hand(one, objective, data.x_test[r], data.y_test[r]) for r in batches]
        assert got == pytest.approx(np.average(means, weights=[len(r) for r in batches]), rel=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in TASKS if "rests" in kind])
def test_measuring_in_between_draws_nothing_and_does_not_change_training(kind):
    pool, engine = federation(TASKS[kind], sizes=SIZES), Simulation("cpu", "sequential")
    (before,) = train(engine, ask(engine, pool))
    _, workload = measured(pool, range(6), engine)
    state = torch.get_rng_state()
    assert (engine.losses([workload])[0] == engine.losses([workload])[0]).all()
    engine.evaluate([workload])
    assert torch.equal(torch.get_rng_state(), state)
    (after,) = train(engine, ask(engine, pool))
    assert torch.equal(before.flat, after.flat)
