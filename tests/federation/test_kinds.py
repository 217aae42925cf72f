"""What a federation of many clients holds, and rounds that share it."""

import tracemalloc

import numpy as np
import pytest

import mmfl
from conftest import toy_task
from mmfl.allocation import RandomClients, RandomProcessors
from mmfl.federation.kinds import Kinds
from mmfl.randomness import Purpose, clients_below, clients_uniform
from mmfl.record import Drawn


def test_clients_of_a_kind_can_train_the_same_tasks_with_the_same_capacity():
    rng = np.random.default_rng(0)
    able, capacity = rng.random((200, 3)) < 0.6, rng.integers(0, 3, 200)
    kinds = Kinds.among(able, capacity)
    np.testing.assert_array_equal(kinds.able[kinds.of], able)
    np.testing.assert_array_equal(kinds.capacity[kinds.of], capacity)
    assert kinds.count.sum() == 200


@pytest.mark.parametrize("bound", [0.0, 0.001, 0.5, 1.0])
def test_numbers_below_a_bound_are_those_of_all_clients(bound):
    expected = np.argwhere(clients_uniform(70_000, 3, Purpose.TASKS, 2, columns=2) < bound)
    np.testing.assert_array_equal(np.stack(clients_below(bound, 70_000, 3, Purpose.TASKS, 2, columns=2), 1), expected)


def test_rounds_with_the_same_clients_share_arrays_that_nobody_can_write_to():
    federation = mmfl.Federation([toy_task()], 6, departures=[0, 0, 0, 0, 0, 3])
    first, second, third = (federation.view(t, rate=0.5, seed=0) for t in (1, 2, 3))
    assert first.able is second.able
    assert third.number_present == 5
    with pytest.raises(ValueError, match="read-only"):
        first.sizes[0] = 1


def test_a_round_of_many_clients_leaves_at_most_forty_bytes_a_pair():
    clients = 100_000
    x, y = np.zeros((clients, 2), dtype=np.float32), np.arange(clients) % 2
    data = mmfl.data.from_arrays(x, y, test=(x[:10], y[:10]))
    tasks = [mmfl.Task(name, lambda: mmfl.models.LogisticRegression(2, 2), data) for name in "abc"]
    tracemalloc.start()
    federation = mmfl.Federation(tasks, clients)
    for rule in (RandomProcessors(), RandomClients()):
        rule.allocate(federation.view(1, rate=0.001, seed=0), None)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held <= 40 * clients * 3


def test_a_round_in_which_everyone_trains_has_a_short_record():
    drawn = Drawn(list(range(100_000)), [1] * 100_000)
    assert len(str(drawn.to_json())) < 50
    assert Drawn.from_json(drawn.to_json()) == drawn
