"""Matches the owners of several tasks by name or number, so that each is the same client in all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.data import Dataset
from mmfl.data.owners import find_owners, is_text
from mmfl.errors import UserError
from mmfl.partition.plain import Owners, choose_owners


@dataclass(frozen=True, eq=False)
class OwnedTask:
    """A task that is divided by owner: its name, its data, and the partition."""

    name: str
    data: Dataset
    rule: Owners


@dataclass(frozen=True, eq=False)
class OwnerPool:
    """The owners of several tasks together, sorted, and which have enough examples of which task, [tasks, owners]."""

    tasks: Sequence[OwnedTask]
    names: NDArray[Any]
    able: NDArray[np.bool_]

    @classmethod
    def of(cls, tasks: Sequence[OwnedTask]) -> "OwnerPool":
        """The union of the tasks' owners."""
        counted = [task.rule.able(task.data) for task in tasks]
        known = [task.rule.names(task.data) for task in tasks]
        _check_kinds(tasks, known)
        names = np.unique(np.concatenate(known))
        able = np.zeros((len(tasks), len(names)), dtype=bool)
        for row, each, counts in zip(able, known, counted, strict=True):
            row[find_owners(names, each)] = counts
        return cls(tasks, names, able)

    def __len__(self) -> int:
        """How many owners have enough examples of some task."""
        return int(self.able.any(0).sum())

    def choose(self, clients: int, rng: np.random.Generator) -> NDArray[Any]:
        """The owners that become clients, sorted: all with enough examples of some task, or a random subset of them."""
        names = ", ".join(f"'{task.name}'" for task in self.tasks)
        who_has = f"data '{self.tasks[0].data.name}' has" if len(self.tasks) == 1 else f"tasks {names} together have"
        least = min(task.rule.least for task in self.tasks)
        chosen: NDArray[Any] = self.names[choose_owners(np.asarray(self.able.any(0)), clients, who_has, rng, least)]
        return chosen


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
