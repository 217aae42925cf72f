"""Server optimisers: any aggregation's step taken as a gradient, as FedOpt does (Reddi et al. 2021)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmfl.aggregation.base import AggregationRule, AggregationWrapper
from mmfl.checks import check
from mmfl.federation import RoundView
from mmfl.updates import Updates


@dataclass
class Moments:
    """The inner aggregation's state, and running means of the step and of its square."""

    inner: Any
    first: Tensor
    second: Tensor


class ServerOptimiser(AggregationWrapper):
    """Treats the step of another aggregation as a gradient; a subclass defines what to do with it."""

    def __init__(self, inner: AggregationRule, lr: float):
        super().__init__(inner)
        check(lr > 0, "server optimiser", "lr", lr, "a positive number")
        self.lr = lr

    def start(self, clients: int, weights: Tensor) -> Moments:
        """No step seen yet."""
        return Moments(self.inner.start(clients, weights), torch.zeros_like(weights), torch.zeros_like(weights))

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Moments) -> tuple[Tensor, Moments]:
        """A step of the optimiser; none where the aggregation takes none."""
        target, inner = self.inner.aggregate(weights, updates, view, state.inner)
        state = Moments(inner, state.first, state.second)
        if not updates.count.any() and torch.equal(target, weights):
            return weights, state
        return self.step(weights, weights - target, state)

    def step(self, weights: Tensor, gradient: Tensor, state: Moments) -> tuple[Tensor, Moments]:
        """The next weights and moments."""
        raise TypeError(f"{type(self).__name__} does not say how to step.")


class ServerMomentum(ServerOptimiser):
    """SGD with momentum on the server (FedAvgM)."""

    def __init__(self, inner: AggregationRule, lr: float = 1.0, momentum: float = 0.9):
        super().__init__(inner, lr)
        self.momentum = _share("momentum", momentum)

    def step(self, weights: Tensor, gradient: Tensor, state: Moments) -> tuple[Tensor, Moments]:
        """m <- momentum m + step; w - lr m."""
        first = self.momentum * state.first + gradient
        return weights - self.lr * first, Moments(state.inner, first, state.second)


class ServerAdam(ServerOptimiser):
    """Adam on the server (FedAdam); `epsilon` is the algorithm's degree of adaptivity, tau."""

    def __init__(
        self, inner: AggregationRule, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-3
    ):
        super().__init__(inner, lr)
        self.beta1, self.beta2 = _share("beta1", beta1), _share("beta2", beta2)
        check(epsilon > 0, "server optimiser", "epsilon", epsilon, "a positive number")
        self.epsilon = epsilon

    def step(self, weights: Tensor, gradient: Tensor, state: Moments) -> tuple[Tensor, Moments]:
        """m and v, means of step and square; w - lr m / (sqrt(v) + epsilon)."""
        first = self.beta1 * state.first + (1 - self.beta1) * gradient
        second = self.beta2 * state.second + (1 - self.beta2) * gradient.square()
        return weights - self.lr * first / (second.sqrt() + self.epsilon), Moments(state.inner, first, second)


def _share(name: str, value: float) -> float:
    check(0 <= value < 1, "server optimiser", name, value, "a number in [0, 1)")
    return value
