"""FedAvg's weighted mean."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.base import AggregationRule
from mmfl.federation import RoundView
from mmfl.updates import Updates


class Average(AggregationRule):
    """The mean of the returned weights (FedAvg), weighted by the clients' numbers of examples or equally."""

    sums_updates = True

    def __init__(self, weighted: bool = True):
        self.weighted = weighted

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """w - sum n G / sum n; unchanged where nobody trained."""
        if not len(updates):
            return weights, state
        return weights - updates.combine(self.coefficients(updates, view)), state

    def coefficients(self, updates: Updates, view: RoundView) -> NDArray[np.float64]:
        """n / sum n."""
        examples = updates.count * (view.sizes[updates.client, updates.task] if self.weighted else 1)
        return np.asarray(examples / examples.sum())
