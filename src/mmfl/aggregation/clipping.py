"""Norm clipping: updates that are longer than others are scaled down before another rule aggregates them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.average import Average
from mmfl.aggregation.base import AggregationRule, AggregationWrapper
from mmfl.checks import check, check_positive, check_whole
from mmfl.federation import RoundView
from mmfl.updates import Updates


@dataclass
class RecentNorms:
    """The inner aggregation's state; the norm of each client's last update and its round (0: none), [clients]; and of
    the last round the bound (nan: none yet) and how many updates were clipped."""

    inner: Any
    norm: NDArray[np.float64]
    round: NDArray[np.int64]
    bound: float = float("nan")
    clipped: int = 0


class NormClipping(AggregationWrapper):
    """Scales updates down to a norm of at most `bound`, then aggregates them as `inner` does, by default their average.

    Without a `bound` it is the median of the norms that were received in the last `window` rounds, this one included,
    times `factor`. Of each client the last norm counts, so that it has one vote however often it is drawn. If fewer
    than half of these clients attack, the bound lies between honest norms times `factor`.
    """

    sums_updates = False

    def __init__(
        self,
        inner: AggregationRule | None = None,
        bound: float | None = None,
        factor: float = 1.0,
        window: int = 10,
    ):
        super().__init__(Average() if inner is None else inner)
        where = "aggregation 'norm-clipping'"
        if bound is not None:
            check_positive(where, "bound", bound)
        check_positive(where, "factor", factor)
        check_whole(where, "window", window)
        check(bound is None or factor == 1.0, where, "factor", factor, "none beside a bound, which it does not change")
        self.bound, self.factor, self.window = bound, factor, window

    def start(self, clients: int, weights: Tensor) -> RecentNorms:
        """No norm known."""
        return RecentNorms(self.inner.start(clients, weights), np.zeros(clients), np.zeros(clients, dtype=np.int64))

    def aggregate(
        self, weights: Tensor, updates: Updates, view: RoundView, state: RecentNorms
    ) -> tuple[Tensor, RecentNorms]:
        """The inner rule's step for G min(1, bound / ||G||)."""
        state = self._observe(updates, view, state)
        weights, inner = self.inner.aggregate(weights, self._clip(updates, state.bound), view, state.inner)
        return weights, replace(state, inner=inner)

    def residuals(self, updates: Updates, view: RoundView, state: RecentNorms) -> NDArray[np.float64]:
        """The inner rule's, of updates as they would be clipped."""
        clipped = self._clip(updates, self._observe(updates, view, state).bound)
        return self.inner.residuals(clipped, view, state.inner)

    def report(self, view: RoundView, task: int, state: RecentNorms) -> Mapping[str, float]:
        """The bound of the round, how many updates were clipped to it, and what the inner rule reports."""
        known = {"norm_bound": state.bound, "clipped": state.clipped} if np.isfinite(state.bound) else {}
        return {**self.inner.report(view, task, state.inner), **known}

    def recent_bound(self, norms: NDArray[np.float64], last: float) -> float:
        """The bound that follows from clients' recent norms and the last bound; nan for none."""
        return self.factor * float(np.median(norms)) if len(norms) else float("nan")

    def _observe(self, updates: Updates, view: RoundView, state: RecentNorms) -> RecentNorms:
        """With the norms of these updates, and the bound that follows."""
        norms, norm, last = updates.norms(), state.norm.copy(), state.round.copy()
        norm[updates.client], last[updates.client] = norms, view.round
        recent = norm[last > max(view.round - self.window, 0)]
        bound = self.bound if self.bound is not None else self.recent_bound(recent, state.bound)
        return RecentNorms(state.inner, norm, last, bound, int((norms > bound).sum()))

    def _clip(self, updates: Updates, bound: float) -> Updates:
        norms = updates.norms()
        longer = norms > bound
        if not longer.any():
            return updates
        with np.errstate(divide="ignore"):  # by a bound of 0, where most updates are 0
            divisors = np.divide(norms, bound, out=np.ones_like(norms), where=longer)
        return replace(updates, rows=updates.rows / divisors)
