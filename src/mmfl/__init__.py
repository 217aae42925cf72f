"""mmfl: multi-model federated learning, many models trained at once over one shared pool of clients."""

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

__version__ = "0.1.0"

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
