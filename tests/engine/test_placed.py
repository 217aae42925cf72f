"""Data on a device: where several tasks train together, in one pool."""

import pytest
import torch
from small import ask, assert_agree, federation, normal, task, train, train_alone

from mmfl.data import Dataset
from mmfl.engine import Simulation
from mmfl.engine.placed import Placed

CPU = torch.device("cpu")


def data(rows: int, first: float = 0.0, **changes) -> Dataset:
    x = first + torch.arange(rows * 2.0).view(rows, 2)
    parts = {"x": x, "y": torch.arange(rows), "x_test": x[:1], "y_test": torch.zeros(1, dtype=torch.int64)}
    return Dataset("numbers", **(parts | changes))


def pooled(pool, one: Dataset):
    rows = slice(pool.begins[one], pool.begins[one] + len(one.x))
    return pool.x[rows], pool.y[rows]


def test_a_pool_holds_each_data_set_once_and_grows_when_others_come():
    placed, (a, b, c) = Placed(CPU, pooling=True), (data(3), data(4, 100), data(2, 200))
    first = placed.pool([a, b, a])
    later = placed.pool([c, a])
    assert len(first.x) == 7
    assert len(later.x) == 9
    for pool, members in ((first, (a, b)), (later, (a, b, c))):
        for each in members:
            assert all(torch.equal(*pair) for pair in zip(pooled(pool, each), (each.x, each.y), strict=True))
    assert placed.pool([a, b, c]) is later


def test_what_is_in_a_pool_is_nowhere_else():
    placed, (a, b) = Placed(CPU, pooling=True), (data(3), data(4, 100))
    alone = placed(a.x)
    pool = placed.pool([a, b])
    assert placed(a.x).data_ptr() == pool.x.data_ptr() != alone.data_ptr()
    assert torch.equal(placed(b.y), b.y)


def test_one_data_set_is_its_own_pool():
    one = data(3)
    assert Placed(CPU).pool([one, one]).x is one.x


@pytest.mark.parametrize(
    "others",
    [
        [data(3, x=torch.zeros(3, 5), x_test=torch.zeros(1, 5))],
        [data(3, y=torch.zeros(3))],
        [data(3, x=torch.zeros(3, 2, dtype=torch.uint8))],
    ],
    ids=["another shape", "other targets", "bytes"],
)
def test_unlike_data_has_no_pool(others):
    assert Placed(CPU, pooling=True).pool([data(3), *others]) is None


def test_targets_of_the_same_inputs_and_large_data_have_no_pool(monkeypatch):
    one = data(3)
    assert Placed(CPU, pooling=True).pool([one, data(3, x=one.x)]) is None
    monkeypatch.setattr("mmfl.engine.placed._MOST_BYTES", 7 * 2 * 4)
    placed = Placed(CPU, pooling=True)
    assert placed.pool([one, data(4)]) is not None
    assert placed.pool([one, data(5)]) is None


@pytest.mark.parametrize("batch_size", [4, None])
def test_tasks_train_from_a_pool_what_they_train_alone(batch_size):
    tasks = [task(x=normal(100, 6, seed=n), name=str(n), batch_size=batch_size) for n in range(2)]
    pool = federation(*tasks)
    engine, placed = Simulation("cpu", "vectorised"), Placed(CPU, pooling=True)
    engine.placed = placed
    for s, answer in enumerate(train(engine, ask(engine, pool, 0), ask(engine, pool, 1))):
        assert_agree(answer, train_alone(pool, s))
    assert placed(tasks[1].data.x).data_ptr() != tasks[1].data.x.data_ptr(), "it was in a pool"
