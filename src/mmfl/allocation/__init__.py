"""Who trains what: allocation rules, one family a file.

A rule sees a frozen `RoundView` and its own explicit state and returns an `Allocation`. It never touches weights,
data or engines; what it wants to know of the clients it names in `needs`, and the training loop measures it.
"""

from collections.abc import Callable

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.full import Full
from mmfl.allocation.random import RandomClients, RandomProcessors
from mmfl.allocation.round_robin import RandomSplit, RotatingSplit
from mmfl.allocation.variance import LossVariance, least_variance

ALLOCATIONS: dict[str, Callable[..., AllocationRule]] = {
    "random-clients": RandomClients,
    "random-processors": RandomProcessors,
    "full": Full,
    "random-split": RandomSplit,
    "rotating-split": RotatingSplit,
    "loss-variance": LossVariance,
}

__all__ = [
    "ALLOCATIONS",
    "Allocation",
    "AllocationRule",
    "Full",
    "LossVariance",
    "RandomClients",
    "RandomProcessors",
    "RandomSplit",
    "RotatingSplit",
    "least_variance",
]
