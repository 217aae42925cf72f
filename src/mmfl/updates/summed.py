"""Updates of which nothing is known but one weighted sum, since clients sent no more than that."""

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.errors import UserError
from mmfl.updates.rows import ClientRows
from mmfl.updates.updates import Trained

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class SummedRows(ClientRows):
    """The sum of the rows of some clients, weighted by `coefficients` [rows]; `total` [parameters].

    It can be had with multiples of these coefficients. Everything else would need single rows, which nobody has.
    """

    total: Tensor = field(kw_only=True)
    coefficients: NDArray[np.float64] = field(kw_only=True)

    @classmethod
    def of(cls, total: Tensor, coefficients: NDArray[np.float64]) -> "SummedRows":
        """A sum over as many rows as there are coefficients."""
        nowhere, length = np.zeros(0, dtype=np.int64), len(coefficients)
        return cls(total.new_empty(0, len(total)), nowhere, length, total=total, coefficients=coefficients)

    @property
    def are_single(self) -> bool:
        """They are not: only their sum is known."""
        return False

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum, for a multiple of the coefficients."""
        square = float(self.coefficients @ self.coefficients)
        factor = float(self.coefficients @ coefficients) / square if square else 1.0
        if not np.allclose(coefficients, factor * self.coefficients, rtol=_ROUNDING, atol=0):
            self._refuse("adds them up with coefficients that it had not said before")
        return self.total if factor == 1.0 else factor * self.total

    def finite(self, matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """All of them or none, by their sum."""
        return np.full(len(self), bool(self.total.isfinite().all()))

    def where(self, wanted: NDArray[np.bool_]) -> ClientRows:
        """All rows or none: a part of a sum cannot be taken."""
        if wanted.all():
            return self
        return self._refuse("leaves out some of them") if wanted.any() else ClientRows(self.matrix)

    def without_matrix(self) -> ClientRows:
        """What is known of the rows, without the sum, which is large."""
        return replace(self, total=self.total.new_empty(0))

    def all(self) -> Tensor:
        """Refused."""
        self._refuse("reads them")

    def norms(self) -> NDArray[np.float64]:
        """Refused."""
        self._refuse("reads their norms")

    def __add__(self, other: Any) -> NoReturn:
        self._refuse("changes them")

    __sub__ = __truediv__ = __add__

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(
            f"the aggregation {what}, but of single updates nothing is known here, only their sum; expected a rule "
            "that says `sums_updates = True` and calls `updates.combine` with its `coefficients`."
        )


@dataclass(frozen=True, eq=False)
class SummedTrained(Trained):
    """Trainings of which the server has the weighted sum of the updates, and nothing of a single one.

    Losses are nan and steps 0: the clients did not send them.
    """

    total: Tensor = field(kw_only=True)
    coefficients: NDArray[np.float64] = field(kw_only=True)

    @classmethod
    def of(cls, client: NDArray[np.int64], total: Tensor, coefficients: NDArray[np.float64]) -> "SummedTrained":
        """The sum over these clients, each with its coefficient."""
        return cls(
            client,
            total.new_empty(0, len(total)),
            np.full(len(client), np.nan),
            np.zeros(len(client), dtype=np.int64),
            np.zeros(0, dtype=np.int64),
            total=total,
            coefficients=coefficients,
        )

    @property
    def client_rows(self) -> ClientRows:
        """The sum."""
        return SummedRows.of(self.total, self.coefficients)
