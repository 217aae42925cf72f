"""The deadline of rounds after which the variance of a sampled step falls fastest."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmfl.errors import UserError

_GRID = 60
_REFINEMENTS = 40
_GOLDEN = (5**0.5 - 1) / 2


class CompletionTimes(Protocol):
    """What must be known of durations: the `Durations` of a federation, or your own."""

    def completion(self, deadline: float) -> NDArray[np.float64]:
        """The probability that a training is done by a deadline, [clients, tasks]."""

    def quantile(self, level: float) -> NDArray[np.float64]:
        """The time by which it is done with a probability, [clients, tasks]."""


def best_deadline(durations: CompletionTimes, weight: NDArray[np.float64]) -> float:
    """The deadline D that minimises D V(D), where V(D) = sum weight / q(D) is the variance of an unbiased step.

    In a second, 1 / D rounds are made, whose mean has the variance D V(D). `weight` [clients, tasks] is B U^2 / p,
    0 for pairs that do not matter. For trainings that take a + Exp(mu), all alike, the best D solves e^x = 1 + D / mu
    with x = (D - a) / mu: D = 1.358 mu if a = mu / 2. Without a shift any earlier deadline is better still, and the 1%
    quantile of the fastest is returned. A deadline by which some pair of positive weight is never done is not chosen.
    Only noise counts here, not what a step is worth.

    >>> class Exponential:
    ...     completion = staticmethod(lambda deadline: -np.expm1(-np.maximum(deadline - 0.5, 0) * np.ones((1, 1))))
    ...     quantile = staticmethod(lambda level: 0.5 - np.log1p(-level) * np.ones((1, 1)))
    >>> round(best_deadline(Exponential(), np.ones((1, 1))), 3)
    1.358
    """
    matters = weight > 0
    if not matters.any():
        raise UserError("deadline 'auto': no client can train anything; expected clients with data.")

    def noise(deadline: float) -> float:
        q = durations.completion(deadline)[matters]
        return float(deadline * (weight[matters] / q).sum()) if (q > 0).all() else np.inf

    first, last = durations.quantile(0.01)[matters].min(), durations.quantile(0.9999)[matters].max()
    grid = np.geomspace(first, last, _GRID)
    grid[-1] = last  # not a little less, where nothing is random
    best = int(np.argmin([noise(deadline) for deadline in grid]))
    found = _least(noise, float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _GRID - 1)]))
    return min((float(grid[best]), found), key=noise)


def _least(value: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is least between two bounds, by the golden section."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(_REFINEMENTS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = value(right)
    return left if at_left <= at_right else right
