"""Variance-reduced allocations: the probabilities under which the sampled sum varies least (Zhang et al. 2025)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.costs import Cost, budget_at_cost, check_cost, cost_of
from mmfl.allocation.random import random_probabilities
from mmfl.allocation.sampling import Draw, draw_named, independent, systematic
from mmfl.allocation.water_filling import least_variance
from mmfl.checks import check, is_number
from mmfl.federation import RoundView

FLOOR = 0.05
"""The minimum loss or norm of a pair, relative to the mean. With a third of the clients at zero loss and unequal
amounts of data, the sampled update varies less with this value than with 0.01 or 0.1, and the largest weight of a draw
is 5 instead of 200,000."""


def replace_non_finite(
    values: NDArray[np.float64], able: NDArray[np.bool_], minimum: float = 0.0
) -> NDArray[np.float64]:
    """Losses or norms in which values that are not finite (of a model that diverged) are replaced by the largest one.

    The largest is taken over pairs that are `able` to train, and is at least `minimum`.
    """
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, values[finite & able].max(initial=minimum))


class LeastVariance(AllocationRule):
    """Probabilities of least variance for a signal x: importance U = d |x| / B (Zhang et al. 2025, Theorem 2).

    With priorities U is multiplied by the task's priority: that minimises the sum over tasks of priority^2 variance.

    Two safeguards keep probabilities away from zero, since a single draw of a tiny probability has a weight large
    enough to destroy a model: x is raised to at least `floor` times its mean, so that no draw weighs more than
    1 / `floor` times as much as that of a client with average x; and a share `mix` of the budget is divided as
    `RandomProcessors` does, p <- (1 - l) p + l m / (V |S_i|) if priorities are equal, which satisfies all constraints.

    `cost` says what the budget pays for: "trainings", device-"seconds", "bytes" of models sent, or numbers of your own,
    [tasks] or [clients, tasks]. Any budget is what `RandomProcessors` would spend on average. With "seconds", clients
    are sampled more often if they are fast, and if their updates probably miss the round's deadline: p is proportional
    to U / sqrt(q c), with the probability q of completion.
    """

    def __init__(
        self, signal: str, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent,
        cost: Cost = "trainings",
    ):  # fmt: skip
        for name, value in (("floor", floor), ("mix", mix)):
            check(is_number(value, 0, 1), "allocation", name, value, "a number in [0, 1]")
        self.signal, self.floor, self.mix = signal, floor, mix
        self.needs = frozenset({signal})
        self.draw = draw_named(draw)
        self.cost = check_cost(cost)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Draws from the least-variance probabilities."""
        probabilities = self.probabilities(view)
        return Allocation.of(self.draw(probabilities, view), probabilities), state

    def probabilities(self, view: RoundView) -> NDArray[np.float64]:
        """The least-variance probabilities of the importance, [clients, tasks]."""
        best = self.least_variance(self.importance(view), view)
        return best if self.mix == 0 else (1 - self.mix) * best + self.mix * random_probabilities(view).table()

    def least_variance(self, importance: NDArray[np.float64], view: RoundView) -> NDArray[np.float64]:
        """The probabilities of least variance for an importance, at the rule's cost, [clients, tasks]."""
        cost = cost_of(self.cost, view)
        if cost is None:
            return least_variance(importance, view.capacity, view.budget)
        if isinstance(self.cost, str) and self.cost == "seconds" and view.completion is not None:
            q = view.completion
            importance = np.divide(importance, np.sqrt(q), out=np.zeros_like(importance), where=q > 0)
        return least_variance(importance, view.capacity, budget_at_cost(cost, view), cost)

    def importance(self, view: RoundView) -> NDArray[np.float64]:
        """U = priority d |x| / B, [clients, tasks]."""
        importance = self.apply_floor(replace_non_finite(np.abs(view.signals[self.signal]), view.able), view)
        importance *= view.share
        importance *= view.priority
        importance /= np.maximum(view.capacity, 1)[:, None]
        return importance

    def apply_floor(self, signal: NDArray[np.float64], view: RoundView) -> NDArray[np.float64]:
        """Raises the signal, in place, to at least `floor` times its mean over tasks and clients (by data share)."""
        mean = np.vdot(signal, view.share) / max(int(view.able.any(0).sum()), 1)
        minimum = self.floor * mean if mean > 0 else 1.0
        return np.maximum(signal, minimum, out=signal)


class LossVariance(LeastVariance):
    """MMFL-LVR: samples where data share times local loss is large; needs a forward pass on every client."""

    def __init__(
        self, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent, cost: Cost = "trainings"
    ):
        super().__init__("losses", floor, mix, draw, cost)


class UpdateVariance(LeastVariance):
    """MMFL-GVR: samples where data share times the norm of the update is large; every client must train."""

    def __init__(
        self, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent, cost: Cost = "trainings"
    ):
        super().__init__("norms", floor, mix, draw, cost)


class ResidualVariance(LeastVariance):
    """Like MMFL-GVR, with the norm of what the stale update does not explain, ||G - beta h||."""

    def __init__(
        self, floor: float = FLOOR, mix: float = 0.0, draw: str | Draw = independent, cost: Cost = "trainings"
    ):
        super().__init__("residuals", floor, mix, draw, cost)


class ExpectedResidualVariance(LeastVariance):
    """Samples where data share times the expected residual r is large: what a stale update probably does not explain.

    The aggregation's memory answers, so that this costs no client anything. With `equal_tasks` the importance of a task
    is divided by its sum over clients, so that the probabilities minimise the sum over tasks of relative variances:
    otherwise a task with long updates (a large network, a large learning rate) takes the budget from the others. No
    importance is less than `floor` times the mean.
    """

    def __init__(
        self, floor: float = 0.1, mix: float = 0.0, draw: str | Draw = systematic, equal_tasks: bool = True,
        cost: Cost = "trainings",
    ):  # fmt: skip
        super().__init__("expected_residuals", floor, mix, draw, cost)
        check(isinstance(equal_tasks, bool), "allocation", "equal_tasks", equal_tasks, "True or False")
        self.equal_tasks = equal_tasks

    def importance(self, view: RoundView) -> NDArray[np.float64]:
        """U = priority d r / B, with equal tasks divided by sum d r, [clients, tasks]."""
        residual = replace_non_finite(view.signals[self.signal], view.able)
        importance = residual * view.share
        total = np.array([column.sum() for column in importance.T])  # as sum(0), but faster
        importance[:, total == 0] = view.share[:, total == 0]  # nothing is left to explain: by amount of data
        importance *= view.priority / np.where((total > 0) & self.equal_tasks, total, 1.0)
        importance /= np.maximum(view.capacity, 1)[:, None]
        able = view.able
        minimum = self.floor * importance.sum() / max(np.count_nonzero(able), 1)
        np.maximum(importance, minimum, out=importance)
        importance *= able
        return importance
