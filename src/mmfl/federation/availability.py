"""Availability: which clients can be reached in a round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, is_positive
from mmfl.errors import UserError
from mmfl.randomness import Purpose, clients_uniform


class Availability(Protocol):
    """Decides which clients can be reached in a round, as a pure function of seed and round."""

    def available(self, round: int, clients: int, seed: int) -> NDArray[np.bool_]:
        """Which clients can be reached, [clients]."""
        ...


@dataclass(frozen=True)
class Always:
    """Every client, every round."""

    def available(self, round: int, clients: int, seed: int) -> NDArray[np.bool_]:
        """Every client."""
        return np.ones(clients, dtype=bool)


@dataclass(frozen=True)
class Bernoulli:
    """Every client with the same probability, independently in every round."""

    probability: float = 0.9

    def __post_init__(self) -> None:
        valid = is_positive(self.probability) and self.probability <= 1
        check(valid, "availability", "probability", self.probability, "a number in (0, 1]")

    def available(self, round: int, clients: int, seed: int) -> NDArray[np.bool_]:
        """A coin toss per client, addressed by (seed, round, client)."""
        return clients_uniform(clients, seed, Purpose.AVAILABILITY, round)[:, 0] < self.probability


class Trace:
    """A recorded table [rounds, clients] of who could be reached; after its last row it starts again."""

    def __init__(self, table: ArrayLike):
        try:
            values = np.asarray(table)
        except ValueError:
            raise UserError(
                "availability: the trace has rows of different lengths; expected [rounds, clients]."
            ) from None
        if values.ndim != 2 or 0 in values.shape:
            raise UserError(f"availability: the trace has shape {values.shape}; expected [rounds, clients].")
        if values.dtype.kind not in "biuf" or not ((values == 0) | (values == 1)).all():
            raise UserError("availability: the trace has values other than 0 and 1, or true and false.")
        self.table: NDArray[np.bool_] = values.astype(bool)

    def available(self, round: int, clients: int, seed: int) -> NDArray[np.bool_]:
        """The row of this round."""
        if self.table.shape[1] != clients:
            raise UserError(f"availability: the trace has {self.table.shape[1]} clients, the federation {clients}.")
        return np.asarray(self.table[(round - 1) % len(self.table)])


AVAILABILITIES: dict[str, Callable[..., Any]] = {"always": Always, "bernoulli": Bernoulli, "trace": Trace}
