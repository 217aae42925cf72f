"""What a federation has of batch norm besides weights: statistics that all share, or each client's own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.updates.memory import ClientMemory
from mmfl.updates.partial_sum import add_up
from mmfl.updates.store import StorageOptions
from mmfl.updates.updates import Updates


@dataclass
class SharedBatchNorm:
    """Running means and variances that the server has, [values].

    They are no weights: inverse probabilities, memories and server optimisers would make a variance negative. So they
    are averaged, whatever the method, with weights that are not negative and sum to 1.
    """

    values: Tensor

    def of(self, client: NDArray[np.int64]) -> Tensor:
        """What these clients begin with: one row for all."""
        return self.values[None]

    def observe(self, updates: Updates, sizes: NDArray[np.int64]) -> None:
        """The mean over the drawn clients, weighted by their examples; without any, all stays as it is."""
        drawn = updates.drawn()
        if drawn.batch_norm is not None and len(drawn):
            n = sizes[drawn.client].astype(np.float64)
            self.values = add_up(drawn.batch_norm.combine(n / n.sum())).clone()

    def mean(self) -> Tensor:
        """What a shared test set is tested with."""
        return self.values


@dataclass
class LocalBatchNorm:
    """FedBN: every client has scales, shifts, running means and variances of its own (Li et al. 2021).

    `changes` are the differences of clients who ever trained from `initial` [values], which all begin with.
    """

    initial: Tensor
    changes: ClientMemory

    @classmethod
    def start(cls, clients: int, initial: Tensor) -> "LocalBatchNorm":
        """Before anyone has trained."""
        return cls(initial, ClientMemory.start(StorageOptions(), clients, initial))

    def of(self, client: NDArray[np.int64]) -> Tensor:
        """What these clients of this process have, a row each."""
        return self.initial + self.changes.stored.held_rows(client)

    def of_all(self, client: NDArray[np.int64]) -> Tensor:
        """As `of`, of clients of any process."""
        return self.initial + self.changes.stored.rows(client)

    def observe(self, updates: Updates, sizes: NDArray[np.int64]) -> None:
        """Clients keep what they trained, drawn or not."""
        if updates.batch_norm is not None and len(updates):
            before = self.changes.stored.of(updates.client).matrix()
            self.changes.replace(updates, before, updates.batch_norm - self.initial, sizes)

    def mean(self) -> Tensor:
        """What a shared test set is tested with: the mean over the clients who ever trained, weighted by examples."""
        examples = max(int(np.nansum(self.changes.weight)), 1)
        return self.initial + self.changes.mean(examples).to(self.initial)


BatchNorm = SharedBatchNorm | LocalBatchNorm
