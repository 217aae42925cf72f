"""Fixed probabilities, the same in every round."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.random import divide_among_tasks
from mmfl.allocation.sampling import Draw, draw_named, independent
from mmfl.errors import UserError
from mmfl.federation import RoundView


class Fixed(AllocationRule):
    """The same p[i, s] in every round, whatever the budget: one number, one per client, or a table [clients, tasks].

    A client's number is divided among the tasks it can train, in proportion to their priorities. A table says itself
    what each pair gets.
    """

    def __init__(self, probabilities: ArrayLike, draw: str | Draw = independent):
        try:
            self.probabilities: NDArray[np.float64] = np.asarray(probabilities, dtype=np.float64)
        except (TypeError, ValueError):
            raise UserError(
                "allocation 'fixed': probabilities are not an array of numbers; expected [clients] or [clients, tasks]."
            ) from None
        if self.probabilities.ndim > 2 or not ((self.probabilities >= 0) & (self.probabilities <= 1)).all():
            raise UserError(
                "allocation 'fixed': probabilities must be numbers in [0, 1], [clients] or [clients, tasks]."
            )
        if self.probabilities.ndim == 2 and (self.probabilities.sum(1) > 1 + 1e-9).any():
            worst = int(np.argmax(self.probabilities.sum(1)))
            raise UserError(f"allocation 'fixed': the probabilities of client {worst} sum to more than 1.")
        self.draw = draw_named(draw)

    def start(self, clients: int, tasks: int) -> None:
        """Checks the shape of the table; there is nothing to remember."""
        expected = ((), (clients,), (clients, tasks))
        if self.probabilities.shape not in expected:
            raise UserError(
                f"allocation 'fixed': probabilities have shape {self.probabilities.shape}; expected one per client, "
                f"({clients},), or [clients, tasks] = ({clients}, {tasks})."
            )

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Draws from the table, with probability 0 for pairs that cannot train this round."""
        table = self.probabilities
        if table.ndim < 2:
            table = divide_among_tasks(view.able, view.priority, np.broadcast_to(table, len(view.sizes)))
        probabilities = np.where(view.able, table, 0.0)
        return Allocation.of(self.draw(probabilities, view), probabilities), state
