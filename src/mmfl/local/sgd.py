"""Plain SGD, the local rule of FedAvg."""

from dataclasses import dataclass

from torch import Tensor

from mmfl.local.base import LocalRule, LocalStep


@dataclass(frozen=True)
class SGD(LocalRule):
    """Plain mini-batch SGD: the gradient itself."""

    def direction(self, step: LocalStep) -> Tensor:
        """The gradient."""
        return step.gradient
