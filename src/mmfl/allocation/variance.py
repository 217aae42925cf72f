"""Variance-reduced allocations: the probabilities under which the sampled sum varies least (Zhang et al. 2025)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.random import evenly
from mmfl.errors import UserError
from mmfl.federation import RoundView
from mmfl.sampling import Draw, draw_named, independent


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


def sound(sizes: NDArray[np.float64], able: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The size of each loss or norm; one that is no finite number (a model that diverged) counts like the largest."""
    known = np.isfinite(sizes)
    largest = np.abs(sizes[known & able]).max(initial=0.0)
    return np.where(known, np.abs(sizes), largest)


class LeastVariance(AllocationRule):
    """Probabilities of least variance for a signal x: importance U = d |x| / B (Zhang et al. 2025, Theorem 2).

    Two safeguards keep every pair's probability away from zero, where a draw would take a huge step: importance is at
    least `floor` times the average one, and a share `mix` of the budget is spread evenly, p <- (1 - l) p + l m / (V
    |S_i|), which keeps every constraint.
    """

    def __init__(self, signal: str, floor: float = 1e-6, mix: float = 0.0, draw: str | Draw = independent):
        for name, value in (("floor", floor), ("mix", mix)):
            if not 0 <= value <= 1:
                raise UserError(f"allocation: {name} is {value}; expected a number in [0, 1].")
        self.signal, self.floor, self.mix = signal, floor, mix
        self.needs = frozenset({signal})
        self.draw = draw_named(draw)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """U = d |x| / B, then the least-variance probabilities."""
        size = sound(view.signals[self.signal], view.able)
        importance = view.share * size / np.maximum(view.capacity, 1)[:, None]
        best = least_variance(self.floored(importance, view.able), view.capacity, view.budget)
        probabilities = best if self.mix == 0 else (1 - self.mix) * best + self.mix * evenly(view)
        return Allocation.of(self.draw(probabilities, view), probabilities), state

    def floored(self, importance: NDArray[np.float64], able: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Importance with its lower bound on the pairs that can train, zero on the others."""
        mean = importance[able].mean() if able.any() else 0.0
        lowest = self.floor * mean if mean > 0 else 1.0
        return np.where(able, np.maximum(importance, lowest), 0.0)


class LossVariance(LeastVariance):
    """MMFL-LVR: sample where data share times local loss is large; takes a forward pass of every client."""

    def __init__(self, floor: float = 1e-6, mix: float = 0.0, draw: str | Draw = independent):
        super().__init__("losses", floor, mix, draw)


class UpdateVariance(LeastVariance):
    """MMFL-GVR: sample where data share times the norm of the update is large; everyone must train to know it."""

    def __init__(self, floor: float = 1e-6, mix: float = 0.0, draw: str | Draw = independent):
        super().__init__("norms", floor, mix, draw)


class ResidualVariance(LeastVariance):
    """As MMFL-GVR, for what the aggregation's memory does not explain of the updates, ||G - beta h||."""

    def __init__(self, floor: float = 1e-6, mix: float = 0.0, draw: str | Draw = independent):
        super().__init__("residuals", floor, mix, draw)
