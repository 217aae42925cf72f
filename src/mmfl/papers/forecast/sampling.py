"""Allocations of the ablation that the package does not offer: other importances, with the draw of `forecast`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation import Allocation, AllocationRule, ExpectedResidualVariance, least_variance
from mmfl.allocation.sampling import systematic
from mmfl.federation import RoundView


class DataShare(AllocationRule):
    """Least-variance probabilities for U = d / B: as if all updates were equally uncertain."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """A systematic draw."""
        return draw(self.importance(view, state), view), state

    def importance(self, view: RoundView, state: Any) -> NDArray[np.float64]:
        """U, [clients, tasks]."""
        return np.asarray(view.share / np.maximum(view.capacity, 1)[:, None])


@dataclass
class LastLosses:
    """The loss that the server last saw of each pair, [clients, tasks]; nan for those that never trained."""

    loss: NDArray[np.float64]


class LastLoss(DataShare):
    """U = d f / B with the mean training loss f of the client's last visit, which came with its update.

    Clients never seen count with the largest loss of their task; no loss counts less than a tenth of the mean.
    """

    def start(self, clients: int, tasks: int) -> LastLosses:
        """No loss seen."""
        return LastLosses(np.full((clients, tasks), np.nan))

    def importance(self, view: RoundView, state: LastLosses) -> NDArray[np.float64]:
        """U, [clients, tasks]."""
        largest = np.nanmax(np.vstack([state.loss, np.zeros(state.loss.shape[1])]), axis=0)
        loss = np.where(np.isnan(state.loss), np.where(largest > 0, largest, 1.0), state.loss)
        loss = np.where(view.able, loss, 0.0)
        loss = np.maximum(loss, 0.1 * loss.sum() / max(int(view.able.sum()), 1))
        return np.asarray(super().importance(view, state) * loss)

    def observe(self, losses: NDArray[np.float64], view: RoundView, state: LastLosses) -> LastLosses:
        """The new losses in place of the old ones."""
        return LastLosses(np.where(np.isfinite(losses), losses, state.loss))


class Capped(ExpectedResidualVariance):
    """The importance of `forecast`, at most `cap` times its mean over the pairs that can train."""

    def __init__(self, cap: float = 3.0, **options: Any):
        super().__init__(**options)
        self.cap = cap

    def importance(self, view: RoundView) -> NDArray[np.float64]:
        """U, [clients, tasks]."""
        importance = super().importance(view)
        return np.asarray(np.minimum(importance, self.cap * importance.sum() / max(int(view.able.sum()), 1)))


class Tempered(ExpectedResidualVariance):
    """The importance of `forecast` to a power: below 1, clients are drawn more evenly."""

    def __init__(self, power: float = 0.5, **options: Any):
        super().__init__(**options)
        self.power = power

    def importance(self, view: RoundView) -> NDArray[np.float64]:
        """U, [clients, tasks]; the sum over each task stays what it was."""
        importance = super().importance(view)
        flatter = importance**self.power
        sums = flatter.sum(0)
        return np.asarray(flatter * importance.sum(0) / np.where(sums > 0, sums, 1.0))


def draw(importance: NDArray[np.float64], view: RoundView) -> Allocation:
    """A systematic draw with the least-variance probabilities."""
    probabilities = least_variance(importance, view.capacity, view.budget)
    return Allocation.of(systematic(probabilities, view), probabilities)
