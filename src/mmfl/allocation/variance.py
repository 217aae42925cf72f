"""Variance-reduced allocations: the probabilities under which the sampled sum varies least (Zhang et al. 2025)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.federation import RoundView
from mmfl.sampling import Draw, independent


def least_variance(importance: NDArray[np.float64], capacity: NDArray[np.int64], budget: float) -> NDArray[np.float64]:
    """The p[i, s] that minimise sum_i B_i sum_s U[i,s]^2 / p[i,s] with B p summing to `budget` (Theorem 2, eq. 13).

    `importance` U is [clients, tasks] for one processor of each client, `capacity` B counts a client's processors.
    Every processor gets sum_s p <= 1. With M_i = sum_s U[i,s], processors sorted by M, and k the largest integer
    with 0 < m - V + k <= (sum of the k smallest M) / M_(k), the k smallest share the budget in proportion to U; the
    others are always active. The processors of a client have equal M, so the second inequality holds for all of
    them or for none, and k is found among whole clients: sorting N numbers is all it takes.
    """
    total = importance.sum(1)
    active = (capacity > 0) & (total > 0)
    processors = int(capacity[active].sum())
    budget = min(budget, float(processors))
    probabilities = np.zeros_like(importance)
    if processors == 0 or budget <= 0:
        return probabilities
    clients = np.flatnonzero(active)
    clients = clients[np.argsort(total[clients], kind="stable")]
    M, B = total[clients], capacity[clients]
    processors_before, sum_before = np.cumsum(B) - B, np.cumsum(B * M) - B * M
    fits = budget - processors + processors_before <= sum_before / M
    last = int(np.flatnonzero(fits)[-1])
    k, shared = processors_before[last] + B[last], sum_before[last] + B[last] * M[last]
    always = importance[clients] / M[:, None]
    probabilities[clients] = always
    within = (budget - processors + k) * (M[: last + 1] / shared)
    probabilities[clients[: last + 1]] = always[: last + 1] * np.minimum(within, 1.0)[:, None]
    return probabilities


def sound(losses: NDArray[np.float64], able: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The size of each loss; one that is no finite number (a model that diverged there) counts like the largest."""
    known = np.isfinite(losses)
    largest = np.abs(losses[known & able]).max(initial=0.0)
    return np.where(known, np.abs(losses), largest)


class LossVariance(AllocationRule):
    """MMFL-LVR: sample where data share times local loss is large (Zhang et al. 2025, Theorem 2).

    Clients whose loss is nearly zero keep an importance of at least `floor` times the average one, so that every
    pair keeps a positive probability.
    """

    needs = frozenset({"losses"})

    def __init__(self, floor: float = 1e-6, draw: Draw = independent):
        self.floor = floor
        self.draw = draw

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """U = d f / B, then the least-variance probabilities."""
        importance = view.share * sound(view.losses, view.able) / np.maximum(view.capacity, 1)[:, None]
        probabilities = least_variance(self.floored(importance, view.able), view.capacity, view.budget)
        return Allocation.of(self.draw(probabilities, view), probabilities), state

    def floored(self, importance: NDArray[np.float64], able: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Importance with its lower bound on the pairs that can train, zero on the others."""
        mean = importance[able].mean() if able.any() else 0.0
        lowest = self.floor * mean if mean > 0 else 1.0
        return np.where(able, np.maximum(importance, lowest), 0.0)
