"""Partitions without artificial skew: IID, or by the natural owners of the data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_whole
from mmfl.data import Dataset
from mmfl.data.owners import find_owners, is_text
from mmfl.data.structure import length
from mmfl.errors import UserError
from mmfl.partition.shards import Partition, Shards, Split
from mmfl.partition.sizes import SizesLike, requested_sizes

_OWNERS = "partition 'owners'"


def iid(sizes: SizesLike = None) -> Partition:
    """Examples are divided at random; `sizes` gives the clients' numbers of examples (default: equal)."""

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        size = requested_sizes(sizes, clients, length(dataset.x), rng)
        if size.sum() > length(dataset.x):
            raise UserError(
                f"partition 'iid': {clients} clients need {size.sum()} examples, but data '{dataset.name}' "
                f"has {length(dataset.x)}."
            )
        rows = rng.permutation(length(dataset.x))[: size.sum()]
        return Split(Shards(rows, np.concatenate([[0], np.cumsum(size)])))

    return partition


@dataclass(frozen=True)
class Owners:
    """Each client is a natural owner (writer, role, device); if there are more owners than clients, a random subset.

    Owners with fewer than `least` training examples are left out; of an owner with more than `most`, `most` random
    examples are used. Test examples are not limited. In a federation an owner is the same client in every task with
    this partition, and lacks a task if it has too few examples of it: `OwnerPool` decides which owner is which client.
    """

    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        check(is_whole(self.least, 1), _OWNERS, "least", self.least, "a whole number from 1")
        valid = self.most is None or is_whole(self.most, self.least)
        check(valid, _OWNERS, "most", self.most, f"a whole number from {self.least} (least), or none")

    def __call__(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        """The split of a single data set, whose owners are the clients."""
        pool = OwnerPool([OwnedTask(dataset.name, dataset, self)])
        return self.split(dataset, pool.choose(clients, rng), rng)

    def names(self, dataset: Dataset) -> NDArray[Any]:
        """The names of the data set's owners, [owners]."""
        if dataset.owner is None or dataset.owner_names is None:
            raise UserError(f"{_OWNERS}: data '{dataset.name}' has no owners.")
        return dataset.owner_names

    def able(self, dataset: Dataset) -> NDArray[np.bool_]:
        """Which of the data set's owners have enough training examples, [owners]."""
        owners = len(self.names(dataset))
        return np.asarray(np.bincount(dataset.owner, minlength=owners) >= self.least)  # type: ignore[arg-type]

    def split(self, dataset: Dataset, clients: NDArray[Any], rng: np.random.Generator) -> Split:
        """The rows of each client; `clients` [clients] are the sorted names of the owners that are clients."""
        client_of = np.where(self.able(dataset), find_owners(clients, self.names(dataset)), -1)
        test = None if dataset.owner_test is None else Shards.by_owner(client_of[dataset.owner_test], len(clients))
        train = Shards.by_owner(client_of[dataset.owner], len(clients))
        return Split(train if self.most is None else _limit_rows(train, self.most, rng), test)


owners = Owners  # as the other partitions are spelled


def _limit_rows(shards: Shards, most: int, rng: np.random.Generator) -> Shards:
    """At most `most` rows of each client, chosen at random."""
    client = np.repeat(np.arange(len(shards.sizes)), shards.sizes)
    order = np.lexsort((rng.random(len(client)), client))
    kept = np.zeros(len(client), dtype=bool)
    kept[order] = np.arange(len(client)) - shards.offset[client] < most
    return Shards(shards.index[kept], np.concatenate([[0], np.cumsum(np.minimum(shards.sizes, most))]))


class OwnedTask(NamedTuple):
    """A task that is divided by owner."""

    name: str
    data: Dataset
    rule: Owners


class OwnerPool:
    """The owners with enough examples of one of several tasks, sorted; they are matched by name or number, so that each
    is the same client in all tasks."""

    def __init__(self, tasks: Sequence[OwnedTask]):
        self.tasks = tasks
        known = [rule.names(data) for _, data, rule in tasks]
        _check_kinds(tasks, known)
        able = [names[rule.able(data)] for names, (_, data, rule) in zip(known, tasks, strict=True)]
        self.names: NDArray[Any] = np.unique(np.concatenate(able))

    def choose(self, clients: int, rng: np.random.Generator) -> NDArray[Any]:
        """The owners that become clients, sorted: all of them, or a random subset."""
        found = len(self.names)
        if found < clients:
            names = ", ".join(f"'{task.name}'" for task in self.tasks)
            single = len(self.tasks) == 1
            who_has = f"data '{self.tasks[0].data.name}' has" if single else f"tasks {names} together have"
            least = min(task.rule.least for task in self.tasks)
            enough = f" with at least {least} examples" if least > 1 else ""
            raise UserError(f"{_OWNERS}: {who_has} {found} owners{enough} for {clients} clients.")
        return self.names if found == clients else self.names[np.sort(rng.permutation(found)[:clients])]


def _check_kinds(tasks: Sequence[OwnedTask], known: Sequence[NDArray[Any]]) -> None:
    """Refuses names in one task and numbers in another."""
    named = [is_text(names) for names in known]
    if len(set(named)) > 1:
        one, other = named.index(True), named.index(False)
        raise UserError(
            f"federation: owners of task '{tasks[one].name}' are names ({known[one][0].item()!r}), those of task "
            f"'{tasks[other].name}' numbers ({known[other][0].item()}), so they cannot be matched;\n"
            "give both as names or both as numbers, or divide one of the tasks by another partition."
        )
