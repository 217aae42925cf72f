"""The examples of every label, and how they are divided if clients request more than there are."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmfl.data import Dataset
from mmfl.errors import UserError
from mmfl.partition.shards import Shards


@dataclass(frozen=True, eq=False)
class Supply:
    """The labels of a data set: `classes` are its class numbers, `label` the index of each row's label in `classes`."""

    where: str
    data: str
    classes: NDArray[np.int64]
    label: NDArray[np.int64]

    @classmethod
    def of(cls, dataset: Dataset, where: str) -> "Supply":
        """The labels of a data set; `where` names the partition in errors."""
        labels = dataset.labels
        if labels is None or labels.dim() != 1:
            raise UserError(f"{where}: the targets of data '{dataset.name}' are not class numbers.")
        return cls(where, dataset.name, *np.unique(labels.numpy(), return_inverse=True))

    @property
    def rows(self) -> int:
        """The number of examples."""
        return len(self.label)

    @cached_property
    def pool(self) -> NDArray[np.int64]:
        """Examples of each label, [classes]."""
        return np.bincount(self.label, minlength=len(self.classes))

    def divide_evenly(
        self, holds: NDArray[np.bool_], sizes: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """How many examples of each label each client gets, [clients, classes]: its size divided evenly among its
        labels.

        If the clients together request more examples of a label than there are, each gets one, and the rest in
        proportion to its request. If there are fewer examples than clients that request them, clients with the most
        other labels get none; ties are broken at random.
        """
        each = holds.sum(1, keepdims=True)
        # The labels that get one example more start at a random label, so that low class numbers are not favoured.
        turn = (np.cumsum(holds, axis=1) - 1 + rng.integers(0, each)) % each
        demand: NDArray[np.int64] = holds * (sizes[:, None] // each + (turn < sizes[:, None] % each))
        for scarce in np.flatnonzero(demand.sum(0) > self.pool):
            self._drop_requests(demand, scarce, rng)
            demand[:, scarce] = ration(demand[:, scarce], int(self.pool[scarce]), rng)
        return demand

    def _drop_requests(self, demand: NDArray[np.int64], scarce: np.intp, rng: np.random.Generator) -> None:
        """Drops requests for a label until there are no more clients than examples."""
        requesters = np.flatnonzero(demand[:, scarce])
        excess = len(requesters) - self.pool[scarce]
        if excess <= 0:
            return
        others = np.count_nonzero(demand[requesters], axis=1) - 1
        order = np.lexsort((rng.random(len(requesters)), -others))[:excess]
        if others[order[-1]] == 0:
            raise UserError(
                f"{self.where}: {len(requesters)} of {len(demand)} clients share label {self.classes[scarce]}, of "
                f"which data '{self.data}' has only {self.pool[scarce]}."
            )
        demand[requesters[order], scarce] = 0

    def assign_rows(self, number: NDArray[np.int64], rng: np.random.Generator) -> Shards:
        """Assigns random rows to clients: `number` [clients, classes] of each label."""
        clients, classes = number.shape
        mixed = rng.permutation(self.rows)
        by_label = mixed[np.argsort(self.label[mixed], kind="stable")]
        pool, taken = self.pool, number.sum(0)
        first = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
        rows = by_label[np.repeat(np.cumsum(pool) - pool, taken) + first]
        owner = np.full(self.rows, -1, dtype=np.int64)
        owner[rows] = np.repeat(np.tile(np.arange(clients), classes), number.T.ravel())
        return Shards.by_owner(owner, clients)


def apportion(weights: NDArray[np.float64], total: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Whole numbers that add up to `total`, in proportion to the weights: largest remainders, ties at random.

    >>> apportion(np.array([5.0, 3.0, 1.5]), 19, np.random.default_rng(0))
    array([10,  6,  3])
    """
    exact = weights * (total / weights.sum())
    numbers: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.lexsort((rng.random(len(exact)), numbers - exact))
    numbers[order[: total - numbers.sum()]] += 1
    return numbers


def ration(demand: NDArray[np.int64], available: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """One for each client that requests any, and the rest in proportion to the remaining requests.

    At least as many must be available as there are clients that request any.

    >>> ration(np.array([1, 0, 3, 5]), 6, np.random.default_rng(0))
    array([1, 0, 2, 3])
    """
    if demand.sum() <= available:
        return demand
    one = np.minimum(demand, 1)
    more = apportion((demand - one).astype(np.float64), available - int(one.sum()), rng)
    return one + more
