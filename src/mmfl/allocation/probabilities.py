"""ByKind: probabilities that are the same for all clients of a kind, without a table of all clients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.federation.kinds import Kinds


@dataclass(frozen=True, eq=False)
class ByKind:
    """Probabilities of clients who differ in what they can train alone: `rows` [kinds, tasks] for every kind.

    It stands for a table [clients, tasks] and is read like one: `probabilities[client, task]`.
    """

    rows: NDArray[np.float64]
    kinds: Kinds

    @property
    def shape(self) -> tuple[int, int]:
        """That of the table, (clients, tasks)."""
        return len(self.kinds.of), self.rows.shape[1]

    def __getitem__(self, pair: tuple[Any, Any]) -> NDArray[np.float64]:
        client, task = pair
        found: NDArray[np.float64] = self.rows[self.kinds.of[client], task]
        return found

    def table(self) -> NDArray[np.float64]:
        """The probabilities of all clients, [clients, tasks]."""
        table: NDArray[np.float64] = self.rows[self.kinds.of]
        return table

    def scaled(self, factor: NDArray[np.float64]) -> "ByKind":
        """Multiplied by a factor [clients], which is the same for clients of a kind."""
        return ByKind(self.rows * factor[self.kinds.first][:, None], self.kinds)


class Probabilities:
    """The field of an `Allocation` that has its probabilities: a table, made from `ByKind` when someone asks for it."""

    def __get__(self, allocation: Any, owner: type[Any]) -> NDArray[np.float64]:
        if allocation is None:
            raise AttributeError("probabilities")  # so that the field has no default
        known = vars(allocation)
        if "_table" not in known:
            known["_table"] = known["_given"].table()
        table: NDArray[np.float64] = known["_table"]
        return table

    def __set__(self, allocation: Any, given: NDArray[np.float64] | ByKind) -> None:
        vars(allocation)["_given"] = given
        if not isinstance(given, ByKind):
            vars(allocation)["_table"] = given
