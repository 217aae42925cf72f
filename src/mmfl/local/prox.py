"""FedProx's proximal term."""

from dataclasses import dataclass

from torch import Tensor

from mmfl.checks import check
from mmfl.local.base import LocalPosition, LocalRule


@dataclass(frozen=True)
class Prox(LocalRule):
    """FedProx: a pull of strength `mu` back to the global weights (Li et al. 2020)."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        check(self.mu >= 0, "local rule 'prox'", "mu", self.mu, "a number >= 0")

    def offset(self, position: LocalPosition) -> Tensor:
        """The gradient of mu / 2 |w - start|^2."""
        return self.mu * (position.weights - position.start)
