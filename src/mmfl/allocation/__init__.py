"""Who trains what: the allocation rules, one family per file.

A rule gets a frozen `RoundView` and its own state and returns an `Allocation`. It never touches weights, data or
engines: it names the measurements that it needs in `needs`, and the training loop gets them. Drawing from given
probabilities is in `mmfl.allocation.sampling`.
"""

from collections.abc import Callable

from mmfl.allocation.bandit import Pareto, Ranklist
from mmfl.allocation.base import Allocation, AllocationRule, AllocationWrapper
from mmfl.allocation.devices import Bods, Venn
from mmfl.allocation.fair import Fair
from mmfl.allocation.fixed import Fixed
from mmfl.allocation.groups import Groups
from mmfl.allocation.random import Full, RandomClients, RandomProcessors
from mmfl.allocation.round_robin import FixedSplit, RandomSplit, RotatingSplit
from mmfl.allocation.schedule import RoundRobinTasks, SequentialTasks, WarmUp
from mmfl.allocation.variance import (
    ExpectedResidualVariance,
    LeastVariance,
    LossVariance,
    ResidualVariance,
    UpdateVariance,
)
from mmfl.allocation.water_filling import least_variance

ALLOCATIONS: dict[str, Callable[..., AllocationRule]] = {
    "random-clients": RandomClients,
    "random-processors": RandomProcessors,
    "full": Full,
    "fixed": Fixed,
    "random-split": RandomSplit,
    "rotating-split": RotatingSplit,
    "fixed-split": FixedSplit,
    "ranklist": Ranklist,
    "pareto": Pareto,
    "loss-variance": LossVariance,
    "update-variance": UpdateVariance,
    "residual-variance": ResidualVariance,
    "expected-residual-variance": ExpectedResidualVariance,
    "groups": Groups,
    "fair": Fair,
    "round-robin-tasks": RoundRobinTasks,
    "sequential-tasks": SequentialTasks,
    "warm-up": WarmUp,
    "venn": Venn,
    "bods": Bods,
}

__all__ = [
    "ALLOCATIONS",
    "Allocation",
    "AllocationRule",
    "AllocationWrapper",
    "Bods",
    "ExpectedResidualVariance",
    "Fair",
    "Fixed",
    "FixedSplit",
    "Full",
    "Groups",
    "LeastVariance",
    "LossVariance",
    "Pareto",
    "RandomClients",
    "RandomProcessors",
    "RandomSplit",
    "Ranklist",
    "ResidualVariance",
    "RotatingSplit",
    "RoundRobinTasks",
    "SequentialTasks",
    "UpdateVariance",
    "Venn",
    "WarmUp",
    "least_variance",
]
