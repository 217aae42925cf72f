"""A user's own data, model, metric and allocation, for own_module.toml."""

import numpy as np
from torch import Tensor, nn

import mmfl
from mmfl.allocation.sampling import independent


def points(people: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around a place of each person's own, and whose they are."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(people), rng.integers(10, 80, people))
    return rng.normal(rng.normal(size=(people, 2))[owner], 0.7), owner


def quadrants(people: int = 30) -> mmfl.data.Dataset:
    """Which of the four quadrants a point lies in."""
    x, owner = points(people)
    return mmfl.data.from_arrays(x, 2 * (x[:, 0] > 0) + (x[:, 1] > 0), owner, name="quadrants")


def distance(people: int = 30) -> mmfl.data.Dataset:
    """How far a point lies from the origin."""
    x, owner = points(people)
    return mmfl.data.from_arrays(x, np.linalg.norm(x, axis=1), owner, name="distance")


class Network(nn.Sequential):
    """Any nn.Module will do."""

    def __init__(self, outputs: int = 4):
        super().__init__(nn.Linear(2, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, outputs))


def explained(outputs: Tensor, targets: Tensor) -> Tensor:
    """A score for regression: 1 for a perfect guess, 0 for one that is off by the typical distance.

    The value of an example is its own: the variance of the targets is a constant, not that of the batch.
    """
    return 1 - (outputs[:, 0] - targets).square() / 0.586


class LargestFirst(mmfl.AllocationRule):
    """Clients with the most data train first; a `spare` part of the budget goes to anybody."""

    def __init__(self, spare: float = 0.1):
        self.spare = spare

    def allocate(self, view: mmfl.RoundView, state: None) -> tuple[mmfl.Allocation, None]:
        weight = view.share * view.able
        favoured = weight / max(weight.sum(), 1e-12) * (1 - self.spare) + view.able / view.able.sum() * self.spare
        probabilities = view.budget * favoured / np.maximum(view.capacity, 1)[:, None]  # of each processor
        probabilities /= np.maximum(probabilities.sum(1, keepdims=True), 1)  # a processor takes one task at most
        return mmfl.Allocation.of(independent(probabilities, view), probabilities), state
