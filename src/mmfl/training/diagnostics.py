"""What every round records besides accuracy: step size, variances, participation and costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation import inverse_probability
from mmfl.allocation import Allocation
from mmfl.federation import RoundView
from mmfl.record import Cost
from mmfl.tensors import walk
from mmfl.updates import Updates

PROBABILITIES = tuple(f"probability_{name}" for name in ("min", "q25", "median", "q75", "max"))


@dataclass
class Tally:
    """Running counts of a run: who trained what, and the step sizes so far (Welford's mean and sum of squares)."""

    participation: NDArray[np.int64]
    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def start(cls, clients: int, tasks: int) -> "Tally":
        """Nothing yet."""
        return cls(
            np.zeros((clients, tasks), dtype=np.int64),
            np.zeros(tasks, dtype=np.int64),
            np.zeros(tasks),
            np.zeros(tasks),
        )

    def add(self, allocation: Allocation, step_sizes: NDArray[np.float64]) -> None:
        """Counts a round; tasks that have not arrived have step size nan."""
        self.participation[allocation.client, allocation.task] += allocation.count
        known = np.isfinite(step_sizes)
        size = np.where(known, step_sizes, 0.0)
        self.rounds += known
        change = np.where(known, size - self.mean, 0.0)
        self.mean += change / np.maximum(self.rounds, 1)
        self.squares += change * np.where(known, size - self.mean, 0.0)

    @property
    def step_size_variance(self) -> NDArray[np.float64]:
        """Z_p: variance of the step size over the rounds so far, per task."""
        return self.squares / np.maximum(self.rounds - 1, 1)

    @property
    def clients_seen(self) -> int:
        """Clients that ever trained anything."""
        return int(self.participation.any(1).sum())


def round_cost(
    allocation: Allocation,
    evaluated: NDArray[np.bool_] | None,
    trained: NDArray[np.bool_] | None,
    lengths: Sequence[int],
    stored_bytes: int,
    downloads: int = 1,
) -> Cost:
    """Counts of a round; `evaluated` and `trained` [clients, tasks] mark the pairs whose loss the method asked for and
    those that trained before anyone was drawn (None: nobody).

    Weights (and what else the local rule needs: `downloads` vectors in all) travel to every client that trains or
    evaluates, updates back from those that were drawn, a number per loss and per norm.
    """
    bytes_of = 4 * np.asarray(lengths)
    drawn = np.zeros(allocation.probabilities.shape, dtype=bool)
    drawn[allocation.client, allocation.task] = True
    trains = drawn if trained is None else drawn | trained
    reached = trains if evaluated is None else trains | evaluated
    passes = 0 if evaluated is None else int(evaluated.sum())
    norms = 0 if trained is None else int(trained.sum())
    return Cost(
        trainings=int(trains.sum()),
        processors=int(allocation.count.sum()),
        forward_passes=passes,
        bytes_up=int(drawn.sum(0) @ bytes_of) + 4 * (passes + norms),
        bytes_down=int((reached.sum(0) + (downloads - 1) * trains.sum(0)) @ bytes_of),
        stored_bytes=stored_bytes,
    )


def memory_of(state: Any) -> int:
    """Bytes of the arrays and tensors in a state."""
    return sum(part.nbytes for part in walk(state) if isinstance(part, Tensor | np.ndarray))


def step_size(updates: Updates, view: RoundView) -> float:
    """||H_s||_1: the sum of inverse-probability weights, 1 on average."""
    return float(inverse_probability(updates, view).sum())


def probability_quantiles(view: RoundView, allocation: Allocation, task: int) -> dict[str, float]:
    """Least, quartiles, median and largest chance of a processor of those who can train a task; nothing where nobody
    was left to chance."""
    p = allocation.probabilities[view.able[:, task], task]
    if allocation.certain or not len(p) or ((p == 0) | (p == 1)).all():
        return {}
    quantiles = np.interp([0, 0.25, 0.5, 0.75, 1], np.linspace(0, 1, len(p)), np.sort(p))
    return dict(zip(PROBABILITIES, quantiles.tolist(), strict=True))


def loss_variance(view: RoundView, allocation: Allocation, task: int) -> float | None:
    """Z_l: variance of the sampled loss, sum over processors of (d f / B)^2 (1/p - 1); None where f is unknown."""
    if "losses" not in view.signals:
        return None
    return _variance(view, allocation, task, view.losses[:, task])


def update_variance(view: RoundView, allocation: Allocation, updates: Updates) -> float | None:
    """Z_g: variance of the sampled update, sum over processors of (d ||G|| / B)^2 (1/p - 1), where every G is known."""
    able = view.able[:, updates.task]
    if len(updates) < int(able.sum()):
        return None
    norms = np.zeros(len(able))
    norms[updates.client] = updates.norms()
    return _variance(view, allocation, updates.task, norms)


def _variance(view: RoundView, allocation: Allocation, task: int, size: NDArray[np.float64]) -> float | None:
    if allocation.certain:
        return 0.0
    p = allocation.probabilities[:, task]
    pairs = view.able[:, task]
    if not pairs.any() or (p[pairs] <= 0).any() or not np.isfinite(size[pairs]).all():
        return None
    capacity = view.capacity[pairs]
    each = (view.share[pairs, task] * size[pairs] / capacity) ** 2 * (1 / p[pairs] - 1)
    return float((capacity * each).sum())
