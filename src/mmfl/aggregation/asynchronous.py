"""Aggregations of updates that began at different times: FedBuff, FedAsync, and other rules with staleness weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.base import AggregationRule, AggregationWrapper
from mmfl.checks import check, check_positive, is_number
from mmfl.errors import UserError
from mmfl.federation import RoundView
from mmfl.tensors import to_device
from mmfl.updates import Updates

Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Polynomial:
    """s(k) = (1 + k)^-a.

    >>> Polynomial(0.5)(np.array([0, 3]))
    array([1. , 0.5])
    """

    exponent: float = 0.5

    def __call__(self, staleness: NDArray[np.int64]) -> Weights:
        """Less and less; always 1 with an exponent of 0."""
        return np.asarray((1.0 + staleness) ** -float(self.exponent))


@dataclass(frozen=True)
class Hinge:
    """s(k) = 1 up to `start` versions, and 1 / (slope (k - start) + 1) beyond.

    >>> Hinge(10, 4)(np.array([4, 5]))
    array([1.        , 0.09090909])
    """

    slope: float
    start: float

    def __call__(self, staleness: NDArray[np.int64]) -> Weights:
        """1, then a hyperbola."""
        return np.asarray(1 / (self.slope * np.maximum(staleness - self.start, 0) + 1))


StalenessWeight = float | Sequence[float] | Callable[[NDArray[np.int64]], Weights]
"""How much an update counts whose task has got k new versions since its client began: a for (1 + k)^-a, where 0 lets
all count alike, two numbers for a hinge (slope, start), or a function of k."""


def _weight(rule: str, given: StalenessWeight) -> Callable[[NDArray[np.int64]], Weights]:
    """The staleness weight that is meant."""
    if callable(given):
        return given
    if is_number(given, 0, np.inf):
        return Polynomial(float(given))  # type: ignore[arg-type]
    two = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2
    valid = two and all(is_number(each, 0, np.inf) for each in given)  # type: ignore[union-attr]
    expected = "the exponent a of (1 + k)^-a, at least 0, or the slope and the start of a hinge"
    check(valid, f"aggregation '{rule}'", "staleness", given, expected)
    return Hinge(*given)  # type: ignore[misc]


def _staleness(updates: Updates) -> NDArray[np.int64]:
    """k of each update; 0 where all began together."""
    return np.zeros(len(updates), dtype=np.int64) if updates.sent is None else updates.sent.staleness


class FedBuff(AggregationRule):
    """The mean of the buffered updates, each weighted by its staleness (Nguyen et al. 2022).

    All updates count alike, whatever the clients' amounts of data: the objective is the one that the routing implies.
    FedAST's aggregation is this with `staleness = 0`.
    """

    def __init__(self, lr: float = 1.0, staleness: StalenessWeight = 0.5):
        check_positive("aggregation 'fedbuff'", "lr", lr)
        self.lr, self.staleness = lr, _weight("fedbuff", staleness)

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """w - lr / K sum s(k) G."""
        if not len(updates):
            return weights, state
        scale = self.lr * updates.count * self.staleness(_staleness(updates)) / updates.count.sum()
        return weights - updates.combine(scale), state


class FedAsync(AggregationRule):
    """Moves the weights towards those of a client, the less the older these are (Xie, Koyejo & Gupta 2019).

    For buffers of one update: w <- (1 - a) w + a w_client with a = alpha s(k).
    """

    needs_starts = True

    def __init__(self, alpha: float = 0.6, staleness: StalenessWeight = 0.5):
        check(is_number(alpha, 0, 1) and alpha > 0, "aggregation 'fedasync'", "alpha", alpha, "a number in (0, 1]")
        self.alpha, self.staleness = alpha, _weight("fedasync", staleness)

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """w - alpha s(k) (w - w_v + G), of the weights w_v that the client began with."""
        if not len(updates):
            return weights, state
        scale = self.alpha * self.staleness(_staleness(updates)) * updates.count / updates.count.sum()
        began = weights if updates.sent is None else updates.sent.weights
        assert began is not None
        moved = to_device(scale, weights) @ (weights - began).expand(len(updates), -1)
        return weights - moved - updates.combine(scale), state


@dataclass
class InnerState:
    """The state of the rule inside."""

    inner: Any


class StalenessWeighted(AggregationWrapper):
    """Another rule, of updates that are multiplied by a weight s(k) of their staleness.

    A weight that differs with k favours fast clients: only with s = 1 an unbiased rule stays unbiased.
    """

    sums_updates = False

    def __init__(self, inner: AggregationRule, staleness: StalenessWeight = 0.5):
        super().__init__(inner)
        self.staleness = _weight("staleness-weighted", staleness)

    def start(self, clients: int, weights: Tensor) -> InnerState:
        """Refuses a rule that remembers updates: it would remember them scaled down."""
        state = self.inner.start(clients, weights)
        if self.inner.last_updates(state) is not None:
            raise UserError(
                f"aggregation 'staleness-weighted': {type(self.inner).__name__} remembers updates, and would remember "
                "them scaled down; expected a rule without memory, such as 'unbiased'."
            )
        return InnerState(state)

    def aggregate(
        self, weights: Tensor, updates: Updates, view: RoundView, state: InnerState
    ) -> tuple[Tensor, InnerState]:
        """The inner rule's step for s(k) G."""
        scaled = replace(updates, rows=updates.rows / (1 / self.staleness(_staleness(updates))))
        weights, inner = self.inner.aggregate(weights, scaled, view, state.inner)
        return weights, InnerState(inner)
