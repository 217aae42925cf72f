"""UpdateBound: no client of a deployment sends an update much longer than those of the others."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation import AggregationRule, NormClipping
from mmfl.aggregation.clipping import RecentNorms
from mmfl.federation import RoundView
from mmfl.updates import Updates

_FEWEST = 3  # clients whose norms say what is usual
_UNUSUAL = 3.0  # times the bound, from which on an update is reported


class UpdateBound(NormClipping):
    """Norm clipping whose bound holds from the first update on, even where few clients train in a round.

    The bound is `factor` times the median of clients' recent norms; of two in the middle the lower one, so that of two
    clients the one with the shorter update sets it. As long as fewer than three clients have sent an update recently,
    the last bound holds; the first one is `factor` times the norm of the initial weights, or `factor` if that is less
    than 1. Records count the updates that were scaled down. `report_clipped(task, client, norm, bound)` is called for
    those that were more than three times as long as the bound, as few honest ones are.
    """

    def __init__(self, inner: AggregationRule, factor: float, report_clipped: Callable[[int, int, float, float], None]):
        super().__init__(inner, factor=factor)
        self.report_clipped = report_clipped

    def start(self, clients: int, weights: Tensor) -> RecentNorms:
        """No norm known, but a bound."""
        bound = self.factor * max(1.0, float(weights.norm()))
        return replace(super().start(clients, weights), bound=bound)

    def recent_bound(self, norms: NDArray[np.float64], last: float) -> float:
        """`factor` times the lower median of at least three norms, or the last bound."""
        if len(norms) < _FEWEST:
            return last
        return self.factor * float(np.quantile(norms, 0.5, method="lower"))

    def aggregate(
        self, weights: Tensor, updates: Updates, view: RoundView, state: RecentNorms
    ) -> tuple[Tensor, RecentNorms]:
        """The inner rule's step for the updates, none of them longer than the bound."""
        weights, state = super().aggregate(weights, updates, view, state)
        drawn = updates.drawn()
        for client, norm in zip(drawn.client.tolist(), drawn.norms().tolist(), strict=True):
            if norm > _UNUSUAL * state.bound:
                self.report_clipped(updates.task, client, norm, state.bound)
        return weights, state
