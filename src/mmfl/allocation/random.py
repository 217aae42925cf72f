"""Uniform allocations: random clients (Multi-FedAvg), random processors (the heterogeneous setting), or everyone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.sampling import Draw, draw_named, independent, sample_clients
from mmfl.federation import RoundView
from mmfl.randomness import Purpose


class RandomClients(AllocationRule):
    """Multi-FedAvg: as many clients as the budget allows, without replacement, each on one of its tasks uniformly.

    With priorities a client takes a task with probability proportional to its priority. (Bhuyan & Moharir 2022.)
    """

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """The clients with the smallest random numbers, each on a random one of its tasks."""
        drawn, ends = sample_clients(view), np.cumsum(view.able * view.priority, axis=1)
        task = (ends > view.uniform(Purpose.TASKS) * ends[:, -1:]).argmax(1)
        count = np.zeros(view.sizes.shape, dtype=np.int64)
        count[drawn, task[drawn]] = 1
        chance = len(drawn) / max(int(view.present.sum()), 1)
        return Allocation.of(count, divide_among_tasks(view, chance / np.maximum(view.capacity, 1))), state


class RandomProcessors(AllocationRule):
    """Every processor is active with probability m / V and takes one of its client's tasks uniformly.

    With priorities it takes a task with probability proportional to its priority. (Zhang et al. 2025.)
    """

    def __init__(self, draw: str | Draw = independent):
        self.draw = draw_named(draw)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """The same probability for every processor."""
        probabilities = random_probabilities(view)
        return Allocation.of(self.draw(probabilities, view), probabilities), state


class Full(AllocationRule):
    """Every client trains every task it has, once."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """All pairs that can train; the expected count is 1, so p = 1 / capacity."""
        probabilities = view.able / np.maximum(view.capacity, 1)[:, None]
        return Allocation.of(view.able.astype(np.int64), probabilities, certain=True, beyond_capacity=True), state


def random_probabilities(view: RoundView) -> NDArray[np.float64]:
    """The budget divided evenly among processors, and by priority among the tasks of each: p[i, s] = (m / V) / |S_i|
    if priorities are equal."""
    return divide_among_tasks(view, np.full(len(view.sizes), min(1.0, view.budget / max(view.processors, 1))))


def divide_among_tasks(view: RoundView, chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each client's probability, divided among the tasks it can train in proportion to priority, [clients, tasks]."""
    weight = view.able * view.priority
    total = weight.sum(1)
    return weight * (chance / np.where(total > 0, total, 1.0))[:, None]
