"""Who holds which examples: partitions of a data set over clients.

A partition is a function `(dataset, clients, rng) -> Split`. It is a pure function of the generator it is given,
every example goes to at most one client, and everything is index arithmetic: no data is copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmfl.data import Dataset
from mmfl.errors import UserError

Sizes = Callable[[int, np.random.Generator], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Shards:
    """Rows of a data set by client: client i holds `index[offset[i]:offset[i + 1]]`."""

    index: NDArray[np.int64]
    offset: NDArray[np.int64]

    @classmethod
    def by_owner(cls, owner: NDArray[np.int64], clients: int) -> "Shards":
        """From the owner of each row; rows of owner -1 belong to nobody."""
        index = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner[owner >= 0], minlength=clients)
        return cls(index[len(index) - sizes.sum() :], np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of each client, [clients]."""
        return np.diff(self.offset)

    def of(self, client: int) -> NDArray[np.int64]:
        """The rows of one client."""
        return self.index[self.offset[client] : self.offset[client + 1]]

    def owner(self, rows: int) -> NDArray[np.int64]:
        """The client of each of the data set's rows, -1 where nobody holds it."""
        owner = np.full(rows, -1, dtype=np.int64)
        owner[self.index] = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return owner

    def without(self, clients: NDArray[np.bool_]) -> "Shards":
        """The same shards with those of the marked clients emptied."""
        kept = np.where(clients, 0, self.sizes)
        return Shards(self.index[np.repeat(~clients, self.sizes)], np.concatenate([[0], np.cumsum(kept)]))


@dataclass(frozen=True, eq=False)
class Split:
    """A partition's answer: training rows by client, and test rows by client where the test set is not shared."""

    train: Shards
    test: Shards | None = None


class Partition(Protocol):
    """Divides a data set among clients."""

    def __call__(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        """Each client's rows; `rng` is the only source of randomness."""
        ...


def high_low(share: float = 0.1, high: tuple[int, int] = (90, 150), low: tuple[int, int] = (9, 15)) -> Sizes:
    """Data volumes of the papers: a random `share` of the clients has many examples, the others a tenth."""

    if not 0 <= share <= 1:
        raise UserError(f"partition sizes 'high-low': share is {share}; expected a number in [0, 1].")
    for name, (least, most) in (("high", high), ("low", low)):
        if not 1 <= least <= most:
            raise UserError(f"partition sizes 'high-low': {name} is {(least, most)}; expected (least, most).")

    def sizes(clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        few, many = rng.integers(low[0], low[1] + 1, clients), rng.integers(high[0], high[1] + 1, clients)
        rich = np.zeros(clients, dtype=bool)
        rich[rng.permutation(clients)[: round(share * clients)]] = True
        return np.where(rich, many, few)

    return sizes


SIZES: dict[str, Callable[..., Sizes]] = {"high-low": high_low}


def _wanted(
    sizes: Sizes | int | Sequence[int] | None, clients: int, available: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Examples each client asks for; by default an equal share of all there are."""
    if sizes is None:
        wanted = np.full(clients, available // clients) + (np.arange(clients) < available % clients)
    elif callable(sizes):
        wanted = sizes(clients, rng)
    else:
        given = np.asarray(sizes, dtype=np.int64)
        if given.ndim > 1 or given.size not in (1, clients):
            raise UserError(f"partition: {given.size} sizes for {clients} clients.")
        wanted = np.broadcast_to(given, clients)
    if (wanted < 1).any():
        raise UserError(
            f"partition: client {int(np.argmax(wanted < 1))} would get no example ({available} for {clients} clients)."
        )
    return wanted


def iid(sizes: Sizes | int | Sequence[int] | None = None) -> Partition:
    """Every client draws from the same pool; `sizes` gives their numbers of examples (default: equal shares)."""

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        wanted = _wanted(sizes, clients, len(dataset.x), rng)
        if wanted.sum() > len(dataset.x):
            raise UserError(
                f"partition 'iid': {wanted.sum()} examples asked for, but data '{dataset.name}' has {len(dataset.x)}."
            )
        rows = rng.permutation(len(dataset.x))[: wanted.sum()]
        return Split(Shards(rows, np.concatenate([[0], np.cumsum(wanted)])))

    return partition


def labels(fraction: float = 0.3, sizes: Sizes | int | Sequence[int] | None = None) -> Partition:
    """Each client sees only a `fraction` of the labels, its examples spread evenly over them.

    Labels are dealt like cards, so each is held by nearly as many clients as any other. Where the clients together
    ask for more of a label than there is, each gets its proportional part, and at least one example.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"partition 'labels': fraction is {fraction}; expected a number in (0, 1].")

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        if dataset.y.is_floating_point() or dataset.y.dim() != 1:
            raise UserError(f"partition 'labels': the targets of data '{dataset.name}' are not class numbers.")
        classes, label = np.unique(dataset.y.numpy(), return_inverse=True)
        each = max(1, round(fraction * len(classes)))
        holds = _deal(clients, each, len(classes), rng)
        wanted = _wanted(sizes, clients, len(label), rng)
        place = np.cumsum(holds, axis=1) - 1
        demand = holds * (wanted[:, None] // each + (place < wanted[:, None] % each))
        pool = np.bincount(label, minlength=len(classes))
        takers = (demand > 0).sum(0)
        if (takers > pool).any():
            short = int(np.argmax(takers > pool))
            raise UserError(
                f"partition 'labels': {takers[short]} clients share label {classes[short]}, of which "
                f"data '{dataset.name}' has only {pool[short]} examples."
            )
        # One example for each taker; the rest in proportion, where not all can have what they ask for.
        further, spare = np.maximum(demand - 1, 0), pool - takers
        scarce = further.sum(0) > spare
        demand = (demand > 0).astype(np.int64) + np.where(
            scarce, further * spare // np.maximum(further.sum(0), 1), further
        )
        owner = np.full(len(label), -1, dtype=np.int64)
        for c in range(len(classes)):
            rows = rng.permutation(np.flatnonzero(label == c))
            takers = np.repeat(np.arange(clients), demand[:, c])
            owner[rows[: len(takers)]] = takers
        return Split(Shards.by_owner(owner, clients))

    return partition


def _deal(clients: int, each: int, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which client holds which label, [clients, classes]: rounds of dealing, a label at most once per hand."""
    holds = np.zeros((clients, classes), dtype=bool)
    held = np.zeros(classes)
    for client in range(clients):
        dealt = np.lexsort((rng.random(classes), held))[:each]
        holds[client, dealt] = True
        held[dealt] += 1
    return holds


def owners() -> Partition:
    """Client = natural owner (writer, role, device); a random choice of them where there are more than clients."""

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        if dataset.owner is None:
            raise UserError(f"partition 'owners': data '{dataset.name}' does not know who owns its examples.")
        if dataset.owners < clients:
            raise UserError(
                f"partition 'owners': data '{dataset.name}' has {dataset.owners} owners for {clients} clients."
            )
        chosen = np.arange(clients)
        if dataset.owners > clients:
            chosen = np.sort(rng.permutation(dataset.owners)[:clients])
        client_of = np.full(dataset.owners, -1, dtype=np.int64)
        client_of[chosen] = np.arange(clients)
        test = None if dataset.owner_test is None else Shards.by_owner(client_of[dataset.owner_test], clients)
        return Split(Shards.by_owner(client_of[dataset.owner], clients), test)

    return partition


PARTITIONS: dict[str, Callable[..., Partition]] = {"iid": iid, "labels": labels, "owners": owners}
