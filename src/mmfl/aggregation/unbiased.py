"""Inverse-probability weighting: in expectation, the step of full participation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.base import AggregationRule
from mmfl.federation import RoundView
from mmfl.updates import Updates


def inverse_probability(updates: Updates, view: RoundView) -> NDArray[np.float64]:
    """H: the weight d / (B p q) of each row, times the number of its drawn processors; sums to 1 on average.

    q is the probability that a drawn client's update is there when the round ends. A row without a drawn processor has
    weight 0, even if p is 0.
    """
    share, capacity = view.share[updates.client, updates.task], view.capacity[updates.client]
    expected = np.where(updates.count > 0, capacity * updates.probability, 1.0)
    weights: NDArray[np.float64] = updates.count * share / (expected * updates.completion)
    return weights


class Unbiased(AggregationRule):
    """w - sum d / (B p) G over the drawn processors (Zhang et al. 2025, eq. 3)."""

    sums_updates = True

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """One sampled step whose mean over all draws is the full step."""
        if not len(updates):
            return weights, state
        return weights - updates.combine(self.coefficients(updates, view)), state

    def coefficients(self, updates: Updates, view: RoundView) -> NDArray[np.float64]:
        """H."""
        return inverse_probability(updates, view)


class SelfNormalised(AggregationRule):
    """The unbiased step divided by ||H||_1: no noise in the step size, at the price of a bias that vanishes as more
    clients are drawn."""

    sums_updates = True

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """w - sum H G / sum H."""
        if not len(updates):
            return weights, state
        return weights - updates.combine(self.coefficients(updates, view)), state

    def coefficients(self, updates: Updates, view: RoundView) -> NDArray[np.float64]:
        """H / sum H."""
        scale = inverse_probability(updates, view)
        return np.asarray(scale / scale.sum())
