"""How clients' work runs: vectorised cohorts, one client after another, or whichever is faster.

An engine trains and measures; it knows nothing of allocations, aggregations or methods. All ways of training give the
same numbers to float tolerance, because mini-batches and dropout masks are functions of an address (seed, round, task,
client). `simulation` is the engine of one process: its `trainer` chooses how each bucket of jobs trains (`vectorised`,
`sequential`), its `measurer` runs forward passes. What only a GPU needs is in `gpu`.
"""

from mmfl.engine.base import Engine, Training, Workload
from mmfl.engine.evaluation import Evaluation
from mmfl.engine.simulation import Simulation

__all__ = ["Engine", "Evaluation", "Simulation", "Training", "Workload"]
