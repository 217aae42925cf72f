"""Data on a device: where several tasks train together, in one pool."""

import pytest
import torch
from small import ask, assert_agree, federation, normal, task, train, train_alone

from mmfl.data import Dataset
from mmfl.engine import Simulation
from mmfl.engine.device_data import DeviceData

CPU = torch.device("cpu")


def data(rows: int, first: float = 0.0, **changes) -> Dataset:
    x = first + torch.arange(rows * 2.0).view(rows, 2)
    parts = {"x": x, "y": torch.arange(rows), "x_test": x[:1], "y_test": torch.zeros(1, dtype=torch.int64)}
    return Dataset("numbers", **(parts | changes))


def pooled(pool, one: Dataset):
    rows = slice(pool.first_row[one], pool.first_row[one] + len(one.x))
    return pool.x[rows], pool.y[rows]


def test_a_pool_holds_each_data_set_once_and_grows_when_others_come():
    on_device, (a, b, c) = DeviceData(CPU, pooling=True), (data(3), data(4, 100), data(2, 200))
    first = on_device.pool([a, b, a])
    later = on_device.pool([c, a])
    assert len(first.x) == 7
    assert len(later.x) == 9
    for pool, members in ((first, (a, b)), (later, (a, b, c))):
        for each in members:
            assert all(torch.equal(*pair) for pair in zip(pooled(pool, each), (each.x, each.y), strict=True))
    assert on_device.pool([a, b, c]) is later


def test_what_is_in_a_pool_is_nowhere_else():
    on_device, (a, b) = DeviceData(CPU, pooling=True), (data(3), data(4, 100))
    alone = on_device(a.x)
    pool = on_device.pool([a, b])
    assert on_device(a.x).data_ptr() == pool.x.data_ptr() != alone.data_ptr()
    assert torch.equal(on_device(b.y), b.y)


def test_one_data_set_is_its_own_pool():
    one = data(3)
    assert DeviceData(CPU).pool([one, one]).x is one.x


ONE = data(3)
UNLIKE = {
    "another shape": data(3, x=torch.zeros(3, 5), x_test=torch.zeros(1, 5)),
    "other targets": data(3, y=torch.zeros(3)),
    "bytes": data(3, x=torch.zeros(3, 2, dtype=torch.uint8)),
    "targets of the same inputs": data(3, x=ONE.x),
}


@pytest.mark.parametrize("difference", UNLIKE)
def test_unlike_data_has_no_pool(difference):
    assert DeviceData(CPU, pooling=True).pool([ONE, UNLIKE[difference]]) is None


def test_large_data_has_no_pool(monkeypatch):
    monkeypatch.setattr("mmfl.engine.device_data._MAX_POOL_BYTES", 7 * 2 * 4)
    on_device = DeviceData(CPU, pooling=True)
    assert on_device.pool([ONE, data(4)]) is not None
    assert on_device.pool([ONE, data(5)]) is None


@pytest.mark.parametrize("batch_size", [4, None])
def test_tasks_train_from_a_pool_what_they_train_alone(batch_size):
    tasks = [task(x=normal(100, 6, seed=n), name=str(n), batch_size=batch_size) for n in range(2)]
    pool = federation(*tasks)
    engine, on_device = Simulation("cpu", "vectorised"), DeviceData(CPU, pooling=True)
    engine.trainer.device_data = on_device
    for s, answer in enumerate(train(engine, ask(engine, pool, 0), ask(engine, pool, 1))):
        assert_agree(answer, train_alone(pool, s))
    assert on_device(tasks[1].data.x).data_ptr() != tasks[1].data.x.data_ptr(), "it was in a pool"
