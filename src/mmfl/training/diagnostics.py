"""What every round records besides accuracy: step size, variances, participation and costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation import inverse_probability
from mmfl.allocation import Allocation
from mmfl.allocation.probabilities import ByKind
from mmfl.federation import RoundView
from mmfl.record import Cost
from mmfl.tensors import walk
from mmfl.updates import Updates

PROBABILITIES = tuple(f"probability_{name}" for name in ("min", "q25", "median", "q75", "max"))


@dataclass
class Tally:
    """Running counts of a run: who trained what, and the step sizes so far (Welford's mean and sum of squares)."""

    participation: NDArray[np.int32]
    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    def __post_init__(self) -> None:
        self._seen = int(self.participation.any(1).sum())

    @classmethod
    def start(cls, clients: int, tasks: int) -> "Tally":
        """Nothing yet."""
        return cls(
            np.zeros((clients, tasks), dtype=np.int32),
            np.zeros(tasks, dtype=np.int64),
            np.zeros(tasks),
            np.zeros(tasks),
        )

    def add(self, allocation: Allocation, step_sizes: NDArray[np.float64]) -> None:
        """Counts a round; tasks that have not arrived have step size nan."""
        clients = np.unique(allocation.client)
        self._seen += int((~self.participation[clients].any(1)).sum())
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
        return self._seen


def round_cost(
    allocation: Allocation,
    evaluated: NDArray[np.bool_] | None,
    trained: NDArray[np.bool_] | None,
    lengths: Sequence[int],
    stored_bytes: int,
    downloads: int = 1,
    arrived: Allocation | None = None,
) -> Cost:
    """Counts of a round; `evaluated` and `trained` [clients, tasks] mark the pairs whose loss the method asked for and
    those that trained before anyone was drawn (None: nobody).

    Weights (and what else the local rule needs: `downloads` vectors in all) travel to every client that trains or
    evaluates, updates back from those that were drawn (or of them only those that `arrived`), a number per loss and per
    norm.
    """
    bytes_of = 4 * np.asarray(lengths)
    drawn = trains = reached = np.bincount(allocation.task, minlength=len(bytes_of))
    sent = drawn if arrived is None else np.bincount(arrived.task, minlength=len(bytes_of))
    passes = norms = 0
    if trained is not None:
        trains = reached = _number_with(allocation, trained)
        norms = int(trained.sum())
    if evaluated is not None:
        reached = _number_with(allocation, evaluated if trained is None else evaluated | trained)
        passes = int(evaluated.sum())
    return Cost(
        trainings=int(trains.sum()),
        processors=int(allocation.count.sum()),
        forward_passes=passes,
        bytes_up=int(sent @ bytes_of) + 4 * (passes + norms),
        bytes_down=int((reached + (downloads - 1) * trains) @ bytes_of),
        stored_bytes=stored_bytes,
    )


def _number_with(allocation: Allocation, marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many pairs of each task are marked [clients, tasks] or drawn, [tasks]."""
    added = ~marks[allocation.client, allocation.task]
    number: NDArray[np.int64] = np.count_nonzero(marks, axis=0)
    return number + np.bincount(allocation.task[added], minlength=marks.shape[1])


def memory_of(state: Any) -> int:
    """Bytes of the arrays and tensors in a state."""
    return sum(part.nbytes for part in walk(state) if isinstance(part, Tensor | np.ndarray))


def step_size(updates: Updates, view: RoundView) -> float:
    """||H_s||_1: the sum of inverse-probability weights, 1 on average."""
    return float(inverse_probability(updates, view).sum())


def probability_quantiles(view: RoundView, allocation: Allocation, task: int) -> dict[str, float]:
    """Least, quartiles, median and largest chance of a processor of those who can train a task; nothing where nobody
    was left to chance."""
    if allocation.certain:
        return {}
    given = allocation.given_probabilities
    if isinstance(given, ByKind):
        kinds = np.flatnonzero(given.kinds.able[:, task] & (given.kinds.count > 0))
        p, count = given.rows[kinds, task], given.kinds.count[kinds]
    else:
        p = given[view.able[:, task], task]
        count = np.ones(len(p), dtype=np.int64)
    if not len(p) or ((p == 0) | (p == 1)).all():
        return {}
    quantiles = _quantiles(p, count, np.array([0, 0.25, 0.5, 0.75, 1]))
    return dict(zip(PROBABILITIES, quantiles.tolist(), strict=True))


def _quantiles(values: NDArray[np.float64], count: NDArray[np.int64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles of values of which each occurs `count` times, linear between neighbours in the sorted list."""
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(count[order])
    last = int(ends[-1]) - 1
    near = np.floor(at * last).astype(np.int64)[:, None] + np.arange(-1, 3)  # one more on each side, as it is rounded
    place = np.unique(np.clip(near, 0, last))
    position = np.where(place == last, 1.0, place * (1.0 / max(last, 1)))
    return np.interp(at, position, values[order][np.searchsorted(ends, place, side="right")])


def loss_variance(view: RoundView, allocation: Allocation, task: int) -> float | None:
    """Z_l: variance of the sampled loss, sum over processors of (d f / B)^2 (1/p - 1); None where f is unknown."""
    if "losses" not in view.signals:
        return None
    return _variance(view, allocation, task, view.losses[:, task])


def update_variance(view: RoundView, allocation: Allocation, updates: Updates) -> float | None:
    """Z_g: variance of the sampled update, sum over processors of (d ||G|| / B)^2 (1/p - 1), where every G is known."""
    if len(updates) < int(view.clients_of[updates.task]) or not updates.rows.are_single:
        return None
    norms = np.zeros(len(view.sizes))
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
