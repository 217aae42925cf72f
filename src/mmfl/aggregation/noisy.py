"""NoisySum: noise on the sum of a round's updates, before any other rule sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.base import AggregationRule, AggregationWrapper
from mmfl.federation import RoundView
from mmfl.privacy import CentralNoise, PrivacySpent
from mmfl.updates import Updates
from mmfl.updates.summed import SummedRows


@dataclass
class Spent:
    """The inner aggregation's state, and what this task's sums have cost each client, [clients]."""

    inner: Any
    losses: NDArray[np.float64]


class NoisySum(AggregationWrapper):
    """Clips updates, adds them up and adds noise to the sum; this is all that the rule inside sees of them.

    So whatever the rule computes, with or without a memory, costs no more privacy than the noisy sums. The cost is
    `accounted` for where who is drawn, and how often, does not depend on the clients' data.
    """

    def __init__(self, inner: AggregationRule, noise: CentralNoise, accounted: bool):
        super().__init__(inner)
        self.noise, self.accounted = noise, accounted

    def start(self, clients: int, weights: Tensor) -> Spent:
        """Nothing spent."""
        return Spent(self.inner.start(clients, weights), np.zeros(clients))

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Spent) -> tuple[Tensor, Spent]:
        """The inner rule's step for sum c G min(1, C / ||G||) + noise; without noise where nobody was drawn."""
        losses = state.losses
        if len(updates):
            coefficients = self.inner.coefficients(updates, view)
            noise = self.noise.draw(weights, coefficients, view.seed, view.round, updates.task)
            total = (self._clip(updates).combine(coefficients) + noise.to(weights)).to(weights)
            updates = replace(updates, rows=SummedRows.of(total, coefficients))
            losses = losses.copy()
            losses[updates.client] += self.noise.losses(coefficients)
        weights, inner = self.inner.aggregate(weights, updates, view, state.inner)
        return weights, Spent(inner, losses)

    def spent(self, states: Sequence[Spent]) -> PrivacySpent | None:
        """What the sums of all tasks have cost each client."""
        losses = np.sum([state.losses for state in states], axis=0)
        return PrivacySpent(losses, self.noise.delta) if self.accounted else None

    def _clip(self, updates: Updates) -> Updates:
        """Updates no longer than the bound; where only their sum arrives, clients have clipped them."""
        if not updates.rows.are_single:
            return updates
        return replace(updates, rows=updates.rows / np.maximum(updates.norms() / self.noise.clip, 1.0))
