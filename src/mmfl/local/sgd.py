"""Plain SGD, the local rule of FedAvg."""

from dataclasses import dataclass

from mmfl.local.base import LocalPosition, LocalRule


@dataclass(frozen=True)
class PlainSGD(LocalRule):
    """Plain mini-batch SGD: the gradient itself."""

    def offset(self, position: LocalPosition) -> None:
        """Nothing is added to the gradient."""
