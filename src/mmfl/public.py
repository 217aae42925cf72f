"""The public names of the package: `mmfl.NAME` imports each of them on first use."""

from mmfl import data, models, partition, trackers
from mmfl.aggregation import AggregationRule
from mmfl.allocation import Allocation, AllocationRule
from mmfl.api import compare, sweep, train
from mmfl.errors import UserError
from mmfl.federation import (
    Always,
    Bernoulli,
    Federation,
    RoundView,
    Task,
    Trace,
    arrivals,
    attacks,
    devices,
    metrics,
    objectives,
    optimisers,
    schedules,
)
from mmfl.local import LocalRule
from mmfl.methods import Method
from mmfl.runs.config import preset
from mmfl.runs.listener import Listener
from mmfl.runs.results import Comparison, Run, load
from mmfl.runs.stopping import Stop
from mmfl.runs.sweep_results import Sweep, load_sweep
from mmfl.updates import Updates

__all__ = [
    "AggregationRule",
    "Allocation",
    "AllocationRule",
    "Always",
    "Bernoulli",
    "Comparison",
    "Federation",
    "Listener",
    "LocalRule",
    "Method",
    "RoundView",
    "Run",
    "Stop",
    "Sweep",
    "Task",
    "Trace",
    "Updates",
    "UserError",
    "arrivals",
    "attacks",
    "compare",
    "data",
    "devices",
    "load",
    "load_sweep",
    "metrics",
    "models",
    "objectives",
    "optimisers",
    "partition",
    "preset",
    "schedules",
    "sweep",
    "trackers",
    "train",
]
