"""When updates are aggregated, and whose: by rounds that wait for everyone or not, one pace per file.

A pace sees durations and the allocation; never weights, updates or data. The training loop carries out what it says.
"""

from collections.abc import Callable

from mmfl.pace.barrier import Barrier, Rounds
from mmfl.pace.base import CAUSES, Ending, Pace, Requests, RoundPace
from mmfl.pace.buffered import Buffered
from mmfl.pace.deadline import Deadline
from mmfl.pace.fedast import FedAST
from mmfl.pace.first import First
from mmfl.pace.slots import AsynchronousPace
from mmfl.pace.window import Window

PACES: dict[str, Callable[..., Pace]] = {
    "rounds": Rounds,
    "barrier": Barrier,
    "deadline": Deadline,
    "first": First,
    "window": Window,
    "buffered": Buffered,
    "fedast": FedAST,
}

__all__ = [
    "CAUSES",
    "PACES",
    "AsynchronousPace",
    "Barrier",
    "Buffered",
    "Deadline",
    "Ending",
    "FedAST",
    "First",
    "Pace",
    "Requests",
    "RoundPace",
    "Rounds",
    "Window",
]
