"""RoundView: what the server knows of the federation when it decides a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mmfl.randomness import Purpose, clients_uniform


@dataclass(frozen=True, eq=False)
class RoundView:
    """All that the server may know when it decides a round. Arrays are [clients, tasks] or [clients].

    Who is absent, has not arrived or lacks a task has size 0 there, and no share. `signals` holds what the
    allocation asked for, by name (`losses`).
    """

    round: int
    seed: int
    sizes: NDArray[np.int64]
    share: NDArray[np.float64]
    capacity: NDArray[np.int64]
    budget: float
    signals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def able(self) -> NDArray[np.bool_]:
        """Who can train what this round, [clients, tasks]."""
        return self.sizes > 0

    @property
    def present(self) -> NDArray[np.bool_]:
        """Clients that can train something this round, [clients]."""
        present: NDArray[np.bool_] = np.asarray(self.able.any(1))
        return present

    @property
    def tasks_of(self) -> NDArray[np.int64]:
        """|S_i|: how many tasks each client can train, [clients]."""
        count: NDArray[np.int64] = self.able.sum(1)
        return count

    @property
    def processors(self) -> int:
        """V: processors of all clients that are there."""
        return int(self.capacity.sum())

    @property
    def losses(self) -> NDArray[np.float64]:
        """f: mean local loss of the global weights, [clients, tasks]; a signal that must be asked for."""
        return self.signals["losses"]

    def with_signals(self, **signals: NDArray[np.float64]) -> "RoundView":
        """The same view with measured signals added."""
        return replace(self, signals={**self.signals, **signals})

    def only(self, tasks: NDArray[np.bool_]) -> "RoundView":
        """The same round with nothing but the marked tasks [tasks]; the budget stays, a client's capacity is at most
        the number of tasks left to it."""
        sizes = np.where(tasks, self.sizes, 0)
        return replace(
            self,
            sizes=sizes,
            share=np.where(tasks, self.share, 0.0),
            capacity=np.minimum(self.capacity, (sizes > 0).sum(1)),
        )

    def without(self, clients: NDArray[np.bool_]) -> "RoundView":
        """The same round without the marked clients [clients]: shares and budget are those of who is left."""
        sizes = np.where(clients[:, None], 0, self.sizes)
        capacity = np.where(clients, 0, self.capacity)
        budget = self.budget * float(capacity.sum()) / max(self.processors, 1)
        return replace(self, sizes=sizes, share=sizes / np.maximum(sizes.sum(0), 1), capacity=capacity, budget=budget)

    def uniform(self, purpose: Purpose, columns: int = 1) -> NDArray[np.float64]:
        """Random numbers of this round in [0, 1), [clients, columns], each addressed by its client."""
        return clients_uniform(len(self.sizes), self.seed, purpose, self.round, columns=columns)
