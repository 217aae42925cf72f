"""What a round records: variances, participation and costs, by hand."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import view_of
from mmfl.allocation import Allocation, Full
from mmfl.diagnostics import Cost, Tally, loss_variance, memory_of, round_cost, step_size, update_variance
from mmfl.engine import Trained
from mmfl.updates import Updates


def table(count) -> Allocation:
    count = np.array(count)
    return Allocation.of(count, np.full(count.shape, 0.5))


@given(
    st.lists(st.tuples(*[st.floats(0, 100) | st.just(np.nan)] * 2), min_size=1, max_size=30),
)
def test_running_variance_is_the_sample_variance_of_the_known_step_sizes(rounds):
    tally, sizes = Tally.start(3, 2), np.array(rounds)
    for row in sizes:
        tally.add(table([[0, 0]] * 3), row)
    for s in range(2):
        known = sizes[np.isfinite(sizes[:, s]), s]
        expected = known.var(ddof=1) if len(known) > 1 else 0.0
        assert tally.step_size_variance[s] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_tally_counts_who_trained_what_and_how_many_clients_ever_did():
    tally = Tally.start(4, 2)
    for count in ([[2, 0], [0, 1], [0, 0], [0, 0]], [[1, 0], [0, 0], [0, 0], [1, 1]]):
        tally.add(table(count), np.ones(2))
    assert tally.participation.tolist() == [[3, 0], [0, 1], [0, 0], [1, 1]]
    assert tally.clients_seen == 3


@dataclass
class Memory:
    round: int
    kept: torch.Tensor
    more: list


def test_memory_counts_the_bytes_of_every_array_in_a_state():
    assert memory_of(None) == memory_of(7) == memory_of("text") == 0
    assert memory_of(torch.zeros(3, 2)) == 24
    assert memory_of(np.zeros(5, dtype=np.int64)) == 40
    state = Memory(3, torch.zeros(2, dtype=torch.float64), [np.zeros(3, dtype=np.int8), (None, torch.zeros(1))])
    assert memory_of([state, state]) == 2 * (16 + 3 + 4)


def test_memory_counts_the_arrays_of_a_dictionary_which_checkpoints_store_too():
    assert memory_of({"stale": torch.zeros(2), "rounds": np.zeros(2)}) == 24


COUNT = [[2, 0], [0, 1], [0, 0]]


def test_cost_of_a_round_that_only_trains():
    # Task 0 has 10 weights (40 bytes), task 1 has 100 (400 bytes); one client each, on three processors.
    cost = round_cost(table(COUNT), None, None, [10, 100], [torch.zeros(5)])
    assert cost == Cost(trainings=2, processors=3, forward_passes=0, bytes_up=440, bytes_down=440, stored_bytes=20)


def test_cost_of_a_round_that_asks_for_losses_first():
    # Losses of 2 clients for task 0, of all 3 for task 1: five numbers up; the weights go to each once.
    evaluated = np.array([[1, 1], [1, 1], [0, 1]], dtype=bool)
    cost = round_cost(table(COUNT), evaluated, None, [10, 100], None)
    assert (cost.forward_passes, cost.bytes_up, cost.bytes_down) == (5, 440 + 5 * 4, 2 * 40 + 3 * 400)
    only_trained = np.array([[0, 0], [0, 0], [1, 0]], dtype=bool)
    assert round_cost(table(COUNT), only_trained, None, [10, 100], None).bytes_down == 2 * 40 + 400
    assert not only_trained[0].any()


VIEW = view_of([[10, 0], [30, 5]], [1, 2], losses=[[2.0, 0.0], [0.4, 1.0]])


def everyone(p) -> Allocation:
    return Allocation.of(VIEW.able.astype(np.int64), np.array(p))


def sent(allocation: Allocation, clients) -> Updates:
    clients = np.array(clients, dtype=np.int64)
    flat = torch.tensor([[3.0, 4.0], [0.0, 2.0]])[clients]
    return Updates.of(0, Trained(clients, flat, np.zeros(len(clients)), clients), allocation)


def test_variances_by_hand():
    allocation = everyone([[0.5, 0.0], [0.25, 0.1]])
    # Client 0: (1/4 * 2)^2 (2 - 1) once; client 1: (3/4 * 0.4 / 2)^2 (4 - 1) on each of its two processors.
    assert loss_variance(VIEW, allocation, 0) == pytest.approx(0.25 + 2 * 0.15**2 * 3)
    assert update_variance(VIEW, allocation, sent(allocation, [0, 1])) == pytest.approx(1.25**2 + 2 * 0.75**2 * 3)
    assert step_size(sent(allocation, [0, 1]), VIEW) == pytest.approx(0.25 / 0.5 + 0.75 / (2 * 0.25))
    assert step_size(sent(allocation, []), VIEW) == 0


def test_variances_are_none_where_they_cannot_be_known():
    allocation = everyone([[0.5, 0.0], [0.25, 0.1]])
    assert loss_variance(view_of([[1]]), allocation, 0) is None
    assert update_variance(VIEW, allocation, sent(allocation, [1])) is None
    assert loss_variance(VIEW, everyone([[0.0, 0.0], [0.25, 0.1]]), 0) is None


@pytest.mark.parametrize("task", [0, 1])
def test_full_participation_has_no_variance_whatever_the_capacities(task):
    allocation, _ = Full().allocate(VIEW, None)
    assert loss_variance(VIEW, allocation, task) in (0, None)
