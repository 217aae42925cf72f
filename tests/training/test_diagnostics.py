"""What a round records: variances, participation and costs, by hand."""

from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pytest
import torch

import mmfl
from conftest import view_of
from mmfl.allocation import Allocation, Full
from mmfl.methods import METHODS
from mmfl.training.diagnostics import loss_variance, memory_of, probability_quantiles, round_cost, update_variance
from mmfl.updates import Trained, Updates


def table(count) -> Allocation:
    count = np.array(count)
    return Allocation.of(count, np.full(count.shape, 0.5))


def test_probabilities_are_told_of_those_who_can_train_where_chance_decides():
    p = np.array([[0.1, 1.0], [0.2, 0.0], [0.4, 1.0], [0.9, 0.3]])
    view = view_of([[5, 5], [5, 5], [5, 5], [0, 0]])
    allocation = Allocation.of(np.ones((4, 2), dtype=np.int64), p)
    assert list(probability_quantiles(view, allocation, 0).values()) == pytest.approx([0.1, 0.15, 0.2, 0.3, 0.4])
    assert probability_quantiles(view, allocation, 1) == {}
    assert probability_quantiles(view, Full().allocate(view, None)[0], 0) == {}
    assert probability_quantiles(view_of([[0, 0]] * 4), allocation, 0) == {}


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
    assert memory_of([state, {"same": state}]) == 2 * (16 + 3 + 4)


COUNT = [[2, 0], [0, 1], [0, 0]]


def test_a_second_vector_goes_to_those_who_train_not_to_those_who_evaluate():
    evaluated = np.array([[1, 1], [1, 1], [0, 1]], dtype=bool)
    assert round_cost(table(COUNT), None, None, [10, 100], 0, downloads=2).bytes_down == 2 * 440
    assert round_cost(table(COUNT), evaluated, None, [10, 100], 0, 2).bytes_down == 2 * 40 + 3 * 400 + 440


# Costs of whole methods, by hand, on five clients of which the last has the first task alone: nine pairs.
# The first task has 16 weights (64 bytes), the second 8 (32 bytes).


@cache
def costly() -> mmfl.Federation:
    tasks = []
    for name, classes in (("large", 4), ("small", 2)):
        model = partial(mmfl.models.LogisticRegression, inputs=3, classes=classes)
        tasks.append(mmfl.Task(name, model, mmfl.data.blobs(60, inputs=3, classes=classes)))
    return mmfl.Federation(tasks, 5, lacks=[[0, 0], [0, 0], [0, 0], [0, 0], [0, 1]], capacity=[1, 2, 1, 2, 1])


BYTES = np.array([64, 32])
PAIRS = np.array([5, 4])
NOBODY = np.array([0, 0])
EVERYONE_TRAINS = ("mmfl-gvr", "mmfl-gvr-star", "mmfl-stalevr", "stalevr-opt")
EVERYONE_EVALUATES = ("mmfl-lvr", "lvr-systematic", "mmfl-stalevr", "mmfl-stalevre", "stalevre-systematic")


@pytest.mark.parametrize("name", METHODS)
def test_costs_of_every_method_by_hand(name):
    run = mmfl.train(costly(), name, 6, 0.5, engine="vectorised")
    for t, record in enumerate(run.records, 1):
        drawn = np.array([len(record.drawn_clients(task)) for task in ("large", "small")])
        trained_first, evaluated = NOBODY, NOBODY
        if name in EVERYONE_TRAINS:
            trained_first = PAIRS
        if name in EVERYONE_EVALUATES:
            evaluated = PAIRS
        if name == "roundrobin-gvr":
            trained_first = PAIRS * [t % 2 == 0, t % 2 == 1]
        if name.startswith("mmfl-group") and t % 2 == 1:  # two clusters, so a cycle is two rounds
            evaluated = PAIRS
        if name == "full" or (t == 1 and name in ("ranklist-multi-ucb", "pareto-multi-ucb")):
            assert (drawn == PAIRS).all()
        trained, reached = np.maximum(drawn, trained_first), np.maximum(np.maximum(drawn, trained_first), evaluated)
        cost = record.cost
        assert cost.trainings == trained.sum()
        assert cost.forward_passes == evaluated.sum()
        assert cost.bytes_up == drawn @ BYTES + 4 * (trained_first.sum() + evaluated.sum())
        assert cost.bytes_down == reached @ BYTES * (2 if name == "scaffold" else 1)
        assert (cost.stored_bytes > 0) == (METHODS[name].stores != "none")
    assert run.costs["trainings"].min() < 9 or name in (*EVERYONE_TRAINS, "full")


@pytest.mark.parametrize(
    ("aggregation", "sums", "indices"),
    [
        ("fedvarp", 1, 2),  # the sum of n h in double precision; slot and weight of each client
        ("mifa", 1, 2),
        ("stalevr", 0, 2),  # slot and beta
        ("stalevre", 2, 4),  # a line's two coefficients; slot, weight, last round and slope
    ],
)
@pytest.mark.parametrize(("precision", "each"), [("float32", 4), ("float16", 2)])
def test_memory_of_methods_that_remember_by_hand(aggregation, sums, indices, precision, each):
    """All pairs have been seen: a vector for each client of a task, and some numbers for each client."""
    keep = {"name": aggregation, "keep": {"precision": precision}}
    method = {"name": "mine", "allocation": "full", "aggregation": keep}
    stored = mmfl.train(costly(), method, 2, engine="vectorised").costs["stored_bytes"]
    lengths = BYTES // 4
    vectors = int(PAIRS @ lengths) * each
    others = int((8 * sums * lengths).sum()) + 2 * 5 * 8 * indices
    bookkeeping = stored.iloc[-1] - vectors - others  # rows' places, and room for the client that lacks a task
    assert 0 <= bookkeeping <= 2 * 16 + 8 * each
    assert stored.iloc[0] == stored.iloc[1]


VIEW = view_of([[10, 0], [30, 5]], [1, 2], losses=[[2.0, 0.0], [0.4, 1.0]])


def everyone(p) -> Allocation:
    return Allocation.of(VIEW.able.astype(np.int64), np.array(p))


def sent(allocation: Allocation, clients) -> Updates:
    clients = np.array(clients, dtype=np.int64)
    flat = torch.tensor([[3.0, 4.0], [0.0, 2.0]])[clients]
    return Updates.of(0, Trained(clients, flat, np.zeros(len(clients)), clients), allocation)


def test_variances_are_none_where_they_cannot_be_known():
    allocation = everyone([[0.5, 0.0], [0.25, 0.1]])
    assert loss_variance(view_of([[1]]), allocation, 0) is None
    assert update_variance(VIEW, allocation, sent(allocation, [1])) is None
    assert loss_variance(VIEW, everyone([[0.0, 0.0], [0.25, 0.1]]), 0) is None
    for nonsense in (np.nan, np.inf):
        diverged = view_of([[10, 0], [30, 5]], [1, 2], losses=[[nonsense, 0.0], [0.4, 1.0]])
        assert loss_variance(diverged, allocation, 0) is None
        assert loss_variance(diverged, allocation, 1) == pytest.approx(2 * 0.5**2 * 9)


def test_full_participation_has_no_variance_whatever_the_capacities():
    allocation, _ = Full().allocate(VIEW, None)
    assert all(loss_variance(VIEW, allocation, task) in (0, None) for task in (0, 1))
