"""How much there is of every label, and how it is shared out when the clients ask for more."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmfl.data import Dataset
from mmfl.errors import UserError
from mmfl.partition.shards import Shards


@dataclass(frozen=True, eq=False)
class Supply:
    """The labels of a data set: `classes` are its class numbers, `label` the place of each row's label among them."""

    where: str
    data: str
    classes: NDArray[np.int64]
    label: NDArray[np.int64]

    @classmethod
    def of(cls, dataset: Dataset, where: str) -> "Supply":
        """What the data set has; `where` names the partition in complaints."""
        if dataset.y.is_floating_point() or dataset.y.dim() != 1:
            raise UserError(f"{where}: the targets of data '{dataset.name}' are not class numbers.")
        return cls(where, dataset.name, *np.unique(dataset.y.numpy(), return_inverse=True))

    @property
    def rows(self) -> int:
        """Examples in all."""
        return len(self.label)

    @cached_property
    def pool(self) -> NDArray[np.int64]:
        """Examples of each label, [classes]."""
        return np.bincount(self.label, minlength=len(self.classes))

    def spread(self, holds: NDArray[np.bool_], sizes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """How many of each label each client gets, [clients, classes]: its size, spread evenly over what it holds.

        Where the clients together ask for more of a label than there is, each gets one example of it and all of the
        rest in proportion to what it asks for. Where there are fewer examples than clients that ask, those with the
        most other labels go without, ties by lot.
        """
        each = holds.sum(1, keepdims=True)
        # Which of a client's labels get the odd examples begins anywhere, lest low class numbers have more.
        turn = (np.cumsum(holds, axis=1) - 1 + rng.integers(0, each)) % each
        demand: NDArray[np.int64] = holds * (sizes[:, None] // each + (turn < sizes[:, None] % each))
        for scarce in np.flatnonzero(demand.sum(0) > self.pool):
            self._withdraw(demand, scarce, rng)
            demand[:, scarce] = ration(demand[:, scarce], int(self.pool[scarce]), rng)
        return demand

    def _withdraw(self, demand: NDArray[np.int64], scarce: np.intp, rng: np.random.Generator) -> None:
        """Leaves no more takers of a label than it has examples."""
        takers = np.flatnonzero(demand[:, scarce])
        excess = len(takers) - self.pool[scarce]
        if excess <= 0:
            return
        others = np.count_nonzero(demand[takers], axis=1) - 1
        order = np.lexsort((rng.random(len(takers)), -others))[:excess]
        if others[order[-1]] == 0:
            raise UserError(
                f"{self.where}: {len(takers)} of {len(demand)} clients share label {self.classes[scarce]}, of which "
                f"data '{self.data}' has only {self.pool[scarce]}."
            )
        demand[takers[order], scarce] = 0

    def hand_out(self, number: NDArray[np.int64], rng: np.random.Generator) -> Shards:
        """Random rows: `number` [clients, classes] of each label for each client."""
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
    """Whole numbers that add up to `total`, in proportion to the weights: largest remainders, ties by lot.

    >>> apportion(np.array([5.0, 3.0, 1.5]), 19, np.random.default_rng(0))
    array([10,  6,  3])
    """
    exact = weights * (total / weights.sum())
    numbers: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.lexsort((rng.random(len(exact)), numbers - exact))
    numbers[order[: total - numbers.sum()]] += 1
    return numbers


def ration(demand: NDArray[np.int64], available: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """One for each who asks, the rest in proportion to what more they ask for; at least as many as ask are there.

    >>> ration(np.array([1, 0, 3, 5]), 6, np.random.default_rng(0))
    array([1, 0, 2, 3])
    """
    if demand.sum() <= available:
        return demand
    one = np.minimum(demand, 1)
    more = apportion((demand - one).astype(np.float64), available - int(one.sum()), rng)
    return one + more
