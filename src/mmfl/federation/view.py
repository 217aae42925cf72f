"""RoundView: what the server knows about the federation when it decides who trains in a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mmfl.randomness import Purpose, clients_uniform


@dataclass(frozen=True, eq=False)
class RoundView:
    """What an allocation may know when it decides who trains in a round. Arrays are [clients, tasks] or [clients].

    - `sizes`: examples of each client for each task; 0 where the client is absent, has not arrived or lacks the task.
    - `share` d: the client's share of all examples of the task that are present in this round.
    - `capacity` B: how many tasks a client can train in this round.
    - `budget` m: the expected number of trainings that the server can pay for.
    - `signals`: the measurements that the allocation asked for, by name (such as `losses`).
    - `priority`: how much each task counts when it is decided who trains what, [tasks]; only ratios matter. All are 1
      if none are given.
    """

    round: int
    seed: int
    sizes: NDArray[np.int64]
    share: NDArray[np.float64]
    capacity: NDArray[np.int64]
    budget: float
    signals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    priority: NDArray[np.float64] = field(default_factory=lambda: np.ones(0))

    def __post_init__(self) -> None:
        if not len(self.priority):
            object.__setattr__(self, "priority", np.ones(self.sizes.shape[1]))

    @property
    def able(self) -> NDArray[np.bool_]:
        """Which clients can train which tasks this round, [clients, tasks]."""
        return self.sizes > 0

    @property
    def present(self) -> NDArray[np.bool_]:
        """Clients that can train something this round, [clients]."""
        return np.asarray(self.able.any(1))

    @property
    def trainable(self) -> NDArray[np.bool_]:
        """Tasks that some client can train this round, [tasks]."""
        return np.asarray(self.able.any(0))

    @property
    def tasks_of(self) -> NDArray[np.int64]:
        """|S_i|: how many tasks each client can train, [clients]."""
        return np.asarray(self.able.sum(1))

    @property
    def processors(self) -> int:
        """V: the number of processors of all present clients."""
        return int(self.capacity.sum())

    @property
    def losses(self) -> NDArray[np.float64]:
        """f: mean local loss of the global weights, [clients, tasks]; only for an allocation that needs `losses`."""
        return self.signals["losses"]

    def with_signals(self, **signals: NDArray[np.float64]) -> "RoundView":
        """The same view with measured signals added."""
        return replace(self, signals={**self.signals, **signals})

    def only(self, tasks: NDArray[np.bool_]) -> "RoundView":
        """The same round and budget with the marked tasks [tasks] alone; capacities are at most the remaining tasks."""
        sizes, share = np.where(tasks, self.sizes, 0), np.where(tasks, self.share, 0.0)
        return replace(self, sizes=sizes, share=share, capacity=np.minimum(self.capacity, (sizes > 0).sum(1)))

    def without(self, clients: NDArray[np.bool_]) -> "RoundView":
        """The same round without the marked clients [clients]: shares and budget are those of the remaining clients."""
        sizes = np.where(clients[:, None], 0, self.sizes)
        capacity = np.where(clients, 0, self.capacity)
        budget = self.budget * float(capacity.sum()) / max(self.processors, 1)
        return replace(self, sizes=sizes, share=sizes / np.maximum(sizes.sum(0), 1), capacity=capacity, budget=budget)

    def uniform(self, purpose: Purpose, columns: int = 1) -> NDArray[np.float64]:
        """Uniform random numbers of this round in [0, 1), [clients, columns]; a row depends on its client alone."""
        return clients_uniform(len(self.sizes), self.seed, purpose, self.round, columns=columns)
