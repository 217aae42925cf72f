"""FedFairMMFL: tasks with a higher loss get more clients (Siew et al. 2024)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.sampling import Draw, draw_named, independent
from mmfl.checks import check
from mmfl.federation import RoundView


@dataclass
class TaskLosses:
    """The mean loss of each task when it was last trained, [tasks]; nan if it never was."""

    mean: NDArray[np.float64]


class Fair(AllocationRule):
    """Every processor is active with probability m / V and takes task s in proportion to (mean loss)^(alpha - 1).

    With priorities it is in proportion to priority times that power. With alpha = 1 losses do not count; the larger
    alpha, the more clients the worst task gets. The losses are the clients' training losses; a task that has not
    trained yet counts like the worst one.
    """

    def __init__(self, alpha: float = 3.0, draw: str | Draw = independent):
        check(alpha >= 1, "allocation 'fair'", "alpha", alpha, "at least 1")
        self.alpha = alpha
        self.draw = draw_named(draw)

    def start(self, clients: int, tasks: int) -> TaskLosses:
        """No task trained yet."""
        return TaskLosses(np.full(tasks, np.nan))

    def allocate(self, view: RoundView, state: TaskLosses) -> tuple[Allocation, TaskLosses]:
        """p[i, s] = (m / V) weight_s / sum of the weights of the client's tasks."""
        known = np.isfinite(state.mean)
        worst = state.mean[known].max(initial=0.0)
        relative = np.where(known, state.mean, worst) / (worst if worst > 0 else 1.0)
        # A loss may be arbitrarily small, but probabilities must stay positive.
        relative = view.able * np.maximum(relative, 1e-6)
        worst_of_client = relative.max(1, keepdims=True)  # relative to it, at least one of the powers is not 0
        power = (relative / np.where(worst_of_client > 0, worst_of_client, 1.0)) ** (self.alpha - 1)
        weight = view.able * view.priority * power
        chance = min(1.0, view.budget / max(view.processors, 1))
        total = weight.sum(1, keepdims=True)
        probabilities = chance * weight / np.where(total > 0, total, 1.0)
        return Allocation.of(self.draw(probabilities, view), probabilities), state

    def observe(self, losses: NDArray[np.float64], view: RoundView, state: TaskLosses) -> TaskLosses:
        """Mean over the clients that trained, weighted by their data."""
        trained = np.isfinite(losses)
        examples = np.where(trained, view.sizes, 0)
        total = examples.sum(0)
        mean = (np.where(trained, losses, 0.0) * (examples / np.maximum(total, 1))).sum(0)
        return TaskLosses(np.where(total > 0, np.abs(mean), state.mean))
