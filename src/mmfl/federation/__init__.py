"""What is trained and by whom: the tasks, the clients that share them, and what the server knows in a round.

Here are `Task` with its objectives, optimisers and schedules, `Federation` with its clients' data, capacities, devices,
arrivals and availability, and `RoundView`, which an allocation decides by. Nothing here trains or decides who trains.
"""

from mmfl.federation.availability import Always, Availability, Bernoulli, Trace
from mmfl.federation.capacities import Capacity
from mmfl.federation.device_profiles import Devices
from mmfl.federation.durations import Durations
from mmfl.federation.federation import Federation
from mmfl.federation.task import Task
from mmfl.federation.view import RoundView

__all__ = [
    "Always",
    "Availability",
    "Bernoulli",
    "Capacity",
    "Devices",
    "Durations",
    "Federation",
    "RoundView",
    "Task",
    "Trace",
]
