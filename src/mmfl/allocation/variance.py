"""Variance-reduced allocations: the probabilities under which the sampled sum varies least (Zhang et al. 2025)."""

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.random import evenly
from mmfl.allocation.sampling import Draw, draw_named, independent
from mmfl.errors import UserError
from mmfl.federation import RoundView

FLOOR = 0.05
"""The least loss or norm that a pair counts with, in units of the mean. Where a third of the clients have zero loss and
their data is unequal, the sampled update varies less with it than with 0.01 or 0.1, and a draw weighs at most 5 in
place of 200,000."""


def least_variance(importance: NDArray[np.float64], capacity: NDArray[np.int64], budget: float) -> NDArray[np.float64]:
    """The p[i, s] that minimise sum_i B_i sum_s U[i,s]^2 / p[i,s] with B p summing to `budget` (Theorem 2, eq. 13).

    `importance` U is [clients, tasks] for one processor of each client, `capacity` B counts a client's processors.
    Every processor gets sum_s p <= 1. With M_i = sum_s U[i,s], processors of a low M share the budget in proportion to
    U and those of a high M are always active: p = U / max(M, level), for the level at which the budget is spent.
    """
    total = importance.sum(1)
    active = (capacity > 0) & (total > 0)
    budget = min(budget, float(capacity[active].sum()))
    if budget <= 0:
        return np.zeros_like(importance)
    level = _level(total[active], capacity[active], budget)
    return importance / np.where(active, np.maximum(total, level), np.inf)[:, None]


def _level(total: NDArray[np.float64], capacity: NDArray[np.int64], budget: float) -> float:
    """(sum of the k smallest M) / (m - V + k), of V processors in all, for the largest k with M_(k) at most that.

    A client's processors have equal M, so the inequality holds for all of them or for none, and k is found among whole
    clients. Fewer processors than the budget counts are always active, so only that many of the largest are sorted.
    """
    rivals = min(len(total), ceil(budget))
    below = total < np.partition(total, -rivals)[-rivals]
    order = np.flatnonzero(~below)
    order = order[np.argsort(total[order], kind="stable")]
    M, B = total[order], capacity[order]
    processors = capacity[below].sum() + np.cumsum(B)
    sums = (capacity[below] * total[below]).sum() + np.cumsum(B * M)
    shared = budget - (processors[-1] - processors)
    last = int(np.flatnonzero((shared > 0) & (shared * M <= sums))[-1])
    return float(sums[last] / shared[last])


def replace_non_finite(sizes: NDArray[np.float64], able: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The size of each loss or norm; one that is no finite number (a model that diverged) counts like the largest."""
    sizes, known = np.abs(sizes), np.isfinite(sizes)
    return sizes if known.all() else np.where(known, sizes, sizes[known & able].max(initial=0.0))


class LeastVariance(AllocationRule):
    """Probabilities of least variance for a signal x: importance U = d |x| / B (Zhang et al. 2025, Theorem 2).

    Two safeguards keep every pair's probability away from zero, where a single draw would weigh so much that it could
    destroy a model: x counts as at least `floor` times its mean, so that no draw weighs more than 1 / `floor` times one
    of a client of average x; and a share `mix` of the budget is spread evenly, p <- (1 - l) p + l m / (V |S_i|), which
    keeps every constraint.
    """

    def __init__(self, signal: str, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent):
        for name, value in (("floor", floor), ("mix", mix)):
            if not 0 <= value <= 1:
                raise UserError(f"allocation: {name} is {value}; expected a number in [0, 1].")
        self.signal, self.floor, self.mix = signal, floor, mix
        self.needs = frozenset({signal})
        self.draw = draw_named(draw)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """A draw from the least-variance probabilities."""
        probabilities = self.probabilities(view)
        return Allocation.of(self.draw(probabilities, view), probabilities), state

    def probabilities(self, view: RoundView) -> NDArray[np.float64]:
        """U = d |x| / B, then the least-variance probabilities, [clients, tasks]."""
        importance = self.floored(replace_non_finite(view.signals[self.signal], view.able), view)
        importance *= view.share
        importance /= np.maximum(view.capacity, 1)[:, None]
        best = least_variance(importance, view.capacity, view.budget)
        return best if self.mix == 0 else (1 - self.mix) * best + self.mix * evenly(view)

    def floored(self, signal: NDArray[np.float64], view: RoundView) -> NDArray[np.float64]:
        """The signal, in place, at least `floor` times its mean over clients, weighted by data, and tasks."""
        mean = np.vdot(signal, view.share) / max(int(view.able.any(0).sum()), 1)
        lowest = self.floor * mean if mean > 0 else 1.0
        return np.maximum(signal, lowest, out=signal)


class LossVariance(LeastVariance):
    """MMFL-LVR: sample where data share times local loss is large; takes a forward pass of every client."""

    def __init__(self, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent):
        super().__init__("losses", floor, mix, draw)


class UpdateVariance(LeastVariance):
    """MMFL-GVR: sample where data share times the norm of the update is large; everyone must train to know it."""

    def __init__(self, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent):
        super().__init__("norms", floor, mix, draw)


class ResidualVariance(LeastVariance):
    """As MMFL-GVR, for what the aggregation's memory does not explain of the updates, ||G - beta h||."""

    def __init__(self, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent):
        super().__init__("residuals", floor, mix, draw)
