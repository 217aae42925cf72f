"""FedAvg's weighted mean."""

from typing import Any

from torch import Tensor

from mmfl.aggregation.base import AggregationRule
from mmfl.federation import RoundView
from mmfl.updates import Updates


class Average(AggregationRule):
    """The mean of the returned weights, weighted by the clients' numbers of examples (FedAvg)."""

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """w - sum n G / sum n; unchanged where nobody trained."""
        if not len(updates):
            return weights, state
        examples = updates.count * view.sizes[updates.client, updates.task]
        return weights - updates.combine(examples / examples.sum()), state
