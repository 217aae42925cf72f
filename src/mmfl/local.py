"""Local rules: how a client turns the gradient of a mini-batch into a step.

Rules work on flat rows, [jobs, piece], so that one line serves a single client and a cohort alike.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmfl.errors import UserError


@dataclass(frozen=True, eq=False)
class LocalStep:
    """A local step about to be taken by some jobs: where they are, and the gradient there, [jobs, piece].

    A step is taken piece by piece of the parameter vector, so that a gradient need not be copied to be used.
    """

    gradient: Tensor
    weights: Tensor
    starts: Tensor
    which: Tensor

    @property
    def start(self) -> Tensor:
        """The global weights each job began from, [jobs, piece]."""
        return self.starts[self.which]


class LocalRule:
    """The direction of a local step; rules that compare equal share a cohort (make them frozen dataclasses)."""

    def direction(self, step: LocalStep) -> Tensor:
        """What the step subtracts, before it is scaled by the learning rate, [jobs, piece]: number by number, since a
        piece is only part of the parameters."""
        raise TypeError(f"{type(self).__name__} does not say where to step.")


@dataclass(frozen=True)
class SGD(LocalRule):
    """Plain mini-batch SGD: the gradient itself."""

    def direction(self, step: LocalStep) -> Tensor:
        """The gradient."""
        return step.gradient


@dataclass(frozen=True)
class Prox(LocalRule):
    """FedProx: a pull of strength `mu` back to the global weights (Li et al. 2020)."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise UserError(f"local rule 'prox': mu is {self.mu}; expected a number >= 0.")

    def direction(self, step: LocalStep) -> Tensor:
        """The gradient of loss + mu / 2 |w - start|^2."""
        return step.gradient + self.mu * (step.weights - step.start)


LOCAL_RULES: dict[str, Callable[..., LocalRule]] = {"sgd": SGD, "prox": Prox}
