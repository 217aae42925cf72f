"""Uniform allocations: random clients (Multi-FedAvg), random processors (the heterogeneous setting), or everyone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.probabilities import ByKind
from mmfl.allocation.sampling import Draw, draw_named, independent, independent_by_kind, sample_clients
from mmfl.federation import RoundView
from mmfl.randomness import Purpose


class RandomClients(AllocationRule):
    """Multi-FedAvg: as many clients as the budget allows, without replacement, each on one of its tasks uniformly.

    With priorities a client takes a task with probability proportional to its priority. (Bhuyan & Moharir 2022.)
    """

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """The clients with the smallest random numbers, each on a random one of its tasks."""
        drawn, kinds = sample_clients(view), view.kinds
        ends = np.cumsum(view.able[drawn] * view.priority, axis=1)
        task = (ends > view.uniform_of(Purpose.TASKS, drawn)[:, None] * ends[:, -1:]).argmax(1)
        chance = len(drawn) / max(view.number_present, 1)
        rows = divide_among_tasks(kinds.able, view.priority, chance / np.maximum(kinds.capacity, 1))
        return Allocation.of_pairs(drawn, task, ByKind(rows, kinds)), state


class RandomProcessors(AllocationRule):
    """Every processor is active with probability m / V and takes one of its client's tasks uniformly.

    With priorities it takes a task with probability proportional to its priority. (Zhang et al. 2025.)
    """

    def __init__(self, draw: str | Draw = independent):
        self.draw = draw_named(draw)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """The same probability for every processor."""
        probabilities = random_probabilities(view)
        if self.draw is independent:
            return Allocation.of_pairs(*independent_by_kind(probabilities, view), probabilities), state
        table = probabilities.table()
        return Allocation.of(self.draw(table, view), table), state


class Full(AllocationRule):
    """Every client trains every task it has, once."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """All pairs that can train; the expected count is 1, so p = 1 / capacity."""
        probabilities = view.able / np.maximum(view.capacity, 1)[:, None]
        return Allocation.of(view.able.astype(np.int64), probabilities, certain=True, beyond_capacity=True), state


def random_probabilities(view: RoundView) -> ByKind:
    """The budget divided evenly among processors, and by priority among the tasks of each: p[i, s] = (m / V) / |S_i|
    if priorities are equal."""
    kinds, chance = view.kinds, min(1.0, view.budget / max(view.processors, 1))
    return ByKind(divide_among_tasks(kinds.able, view.priority, np.full(len(kinds.able), chance)), kinds)


def divide_among_tasks(
    able: NDArray[np.bool_], priority: NDArray[np.float64], chance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Each client's probability, divided among the tasks it is `able` [clients, tasks] to train in proportion to
    priority, [clients, tasks]. Kinds of clients may stand for the clients."""
    weight = able * priority
    total = weight.sum(1)
    return weight * (chance / np.where(total > 0, total, 1.0))[:, None]
