"""What is trained, and by whom: tasks, the pool of clients that share them, and what the server knows of it in a round.

Tasks with their objectives and schedules, clients with their data, capacities, arrivals and availability. Nothing here
trains, and nothing decides who does.
"""

from mmfl.federation.availability import Always, Availability, Bernoulli, Trace
from mmfl.federation.federation import Capacity, Federation
from mmfl.federation.task import Task
from mmfl.federation.view import RoundView

__all__ = ["Always", "Availability", "Bernoulli", "Capacity", "Federation", "RoundView", "Task", "Trace"]
