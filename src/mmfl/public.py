"""The public names of the package; `import mmfl` gives each when it is first asked for."""

from mmfl import data, models, objectives, partition, trackers
from mmfl.aggregation import AggregationRule
from mmfl.allocation import Allocation, AllocationRule
from mmfl.api import compare, train
from mmfl.availability import Always, Bernoulli, Trace
from mmfl.config import preset
from mmfl.errors import UserError
from mmfl.federation import Federation, RoundView
from mmfl.local import LocalRule
from mmfl.methods import Method
from mmfl.run import Comparison, Run, load
from mmfl.task import Task
from mmfl.updates import Updates

__all__ = [
    "AggregationRule",
    "Allocation",
    "AllocationRule",
    "Always",
    "Bernoulli",
    "Comparison",
    "Federation",
    "LocalRule",
    "Method",
    "RoundView",
    "Run",
    "Task",
    "Trace",
    "Updates",
    "UserError",
    "compare",
    "data",
    "load",
    "models",
    "objectives",
    "partition",
    "preset",
    "trackers",
    "train",
]
