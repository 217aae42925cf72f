"""How clients' work runs: vectorised cohorts, one client after another, or whichever is faster.

An engine trains and measures; it knows nothing of allocations, aggregations or methods. All engines give the same
numbers to float tolerance, because mini-batches and dropout masks are addressed, not consumed.
"""

from mmfl.engine.base import Engine, Evaluation, Training, Workload
from mmfl.engine.simulation import Simulation

__all__ = ["Engine", "Evaluation", "Simulation", "Training", "Workload"]
