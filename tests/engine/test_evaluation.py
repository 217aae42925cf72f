"""Metrics by client, and tests that several processes share."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from small import CLASSES, VECTORS, task

from mmfl.data import Dataset
from mmfl.engine import Simulation, Workload, measurer
from mmfl.federation import Federation
from mmfl.updates import World

OWNER, OWNER_TEST = np.arange(60) % 6, np.concatenate([np.zeros(9), np.ones(4), np.full(1, 3), np.full(26, 5)])


def owned(**options) -> Federation:
    """Six clients, of whom two have no test examples, and one a single one."""
    data = Dataset("own", VECTORS[:60], CLASSES[:60], VECTORS[60:], CLASSES[60:], OWNER, OWNER_TEST.astype(int))
    return Federation([replace(task(), data=data, **options)])


def workloads(pool: Federation, engine: Simulation) -> list[Workload]:
    return [Workload(pool, 0, engine.initial(pool, 0, seed=1), np.zeros(0, dtype=np.int64))] * 3


def evaluated(pool: Federation, engine: Simulation):
    return engine.evaluate(workloads(pool, engine))


def accuracy(y, scores):
    return sklearn.accuracy_score(y, scores.argmax(1))


def macro_f1(y, scores):
    return sklearn.f1_score(y, scores.argmax(1), average="macro")


def auc(y, scores):
    present = np.unique(y)
    if len(present) < 2:
        return np.nan
    return np.mean([sklearn.roc_auc_score(y == label, scores[:, label]) for label in present])


@pytest.mark.parametrize("rows", [1, 5, 1000])
@pytest.mark.parametrize("metric", [accuracy, macro_f1, auc], ids=lambda metric: metric.__name__)
def test_the_metric_of_each_client_is_that_of_its_own_test_examples(metric, rows, monkeypatch):
    monkeypatch.setattr(measurer, "forward_batch_size", lambda architecture, device: rows)
    pool = owned(metric=metric.__name__)
    result = evaluated(pool, Simulation("cpu"))[0]
    (one,) = pool.tasks
    with torch.no_grad():
        scores = one.build(1, 0).eval()(one.data.x_test).double().softmax(-1).numpy()
    y = one.data.y_test.numpy()
    assert result.metric == pytest.approx(metric(y, scores))
    assert result.clients.client.tolist() == [0, 1, 3, 5]
    assert result.clients.examples.tolist() == [9, 4, 1, 26]
    expected = [metric(y[rows], scores[rows]) for rows in map(pool.test_shards[0].of, (0, 1, 3, 5))]
    np.testing.assert_allclose(result.clients.value, expected)


class Thread(World):
    """One of two threads that act as processes."""

    size = 2

    def __init__(self, rank: int, shared: list, barrier: threading.Barrier):
        self.rank, self.shared, self.barrier = rank, shared, barrier

    def sum(self, part):
        self.shared[self.rank] = part
        self.barrier.wait(60)
        total = self.shared[0] + self.shared[1]
        self.barrier.wait(60)
        return total

    sums = sum


def test_all_processes_know_the_results_of_all_tests():
    pool, barrier, shared = owned(metrics=["macro_f1", "auc", "confusion"]), threading.Barrier(2), [None, None]
    engines = [Simulation("cpu", world=Thread(rank, shared, barrier)) for rank in range(2)]
    asked = [workloads(pool, engine) for engine in engines]  # here: threads would share torch's random numbers
    found: list = [None, None]

    def work(rank: int) -> None:
        found[rank] = engines[rank].evaluate(asked[rank])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = evaluated(pool, Simulation("cpu"))
    for mine in found:
        for result, alone in zip(mine, expected, strict=True):
            assert (result.loss, result.metric, result.metrics) == (alone.loss, alone.metric, alone.metrics)
            np.testing.assert_array_equal(result.tables["confusion"], alone.tables["confusion"])
            np.testing.assert_array_equal(result.clients.value, alone.clients.value)
