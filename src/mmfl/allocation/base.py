"""Allocation: the decision of a round. AllocationRule: how it is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.probabilities import ByKind, Probabilities
from mmfl.delegation import delegates
from mmfl.errors import UserError
from mmfl.federation import RoundView


@dataclass(frozen=True, eq=False)
class Allocation:
    """Which clients train which tasks in a round: one row per (client, task) pair that was drawn.

    `count` processors of `client` were drawn for `task`; `probability` is the probability that one particular processor
    of that client is drawn for it (expected count / capacity). `probabilities` has it for all pairs, [clients, tasks];
    `given_probabilities` is what the rule gave, a table or `ByKind`.

    `certain` means that nothing was random. `beyond_capacity` means that clients may train more tasks than their
    capacity allows, as in full participation, which serves as a reference.
    """

    client: NDArray[np.int64]
    task: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    probabilities: Probabilities = Probabilities()  # noqa: RUF009 (it describes the field; there is no default)
    certain: bool = False
    beyond_capacity: bool = False

    @classmethod
    def of(cls, count: NDArray[np.int64], probabilities: NDArray[np.float64], **options: bool) -> "Allocation":
        """From tables [clients, tasks]; rows are sorted by task, then client. Options: `certain`, `beyond_capacity`."""
        task, client = np.nonzero(count.T)
        return cls(client, task, count[client, task], probabilities[client, task], probabilities, **options)

    @classmethod
    def of_pairs(cls, client: NDArray[np.int64], task: NDArray[np.int64], probabilities: ByKind) -> "Allocation":
        """From drawn pairs, one for each training, and probabilities by kind, without a table of all clients; the order
        of the rows is that of `of`."""
        clients = probabilities.shape[0]
        pair, count = np.unique(task * clients + client, return_counts=True)
        task, client = np.divmod(pair, max(clients, 1))
        return cls(client, task, count, probabilities[client, task], probabilities)

    @property
    def given_probabilities(self) -> NDArray[np.float64] | ByKind:
        """The probabilities as the rule gave them: a table, or a row for each kind of clients."""
        given: NDArray[np.float64] | ByKind = vars(self)["_given"]
        return given

    def scaled(self, factor: NDArray[np.float64]) -> "Allocation":
        """The same rows, all probabilities multiplied by a factor [clients], which is the same for clients who can
        train the same tasks with the same capacity."""
        given = self.given_probabilities
        scaled = given.scaled(factor) if isinstance(given, ByKind) else given * factor[:, None]
        probability = scaled[self.client, self.task]
        return Allocation(self.client, self.task, self.count, probability, scaled, self.certain, self.beyond_capacity)

    def count_of(self, client: NDArray[np.int64], task: int) -> NDArray[np.int64]:
        """How many processors of each of these clients were drawn for a task, [len(client)]."""
        return self.column_of(self.count, client, task, 0)

    def column_of(self, column: NDArray[Any], client: NDArray[np.int64], task: int, other: Any) -> NDArray[Any]:
        """A column's values for these clients and a task, given its values for all rows; `other` for clients that were
        not drawn."""
        rows = self.rows(task)
        rows = rows[np.argsort(self.client[rows])]
        drawn = self.client[rows]
        place = np.searchsorted(drawn, client)
        found = np.append(drawn, -1)[place] == client
        return np.where(found, np.append(column[rows], other)[place], other)

    def where(self, wanted: NDArray[np.bool_]) -> "Allocation":
        """The wanted rows alone, of the same decision."""
        if wanted.all():
            return self
        columns = self.client[wanted], self.task[wanted], self.count[wanted], self.probability[wanted]
        return Allocation(*columns, self.given_probabilities, self.certain, self.beyond_capacity)

    def drawn_clients(self, task: int) -> NDArray[np.int64]:
        """The clients drawn for a task, in ascending order."""
        return np.sort(self.client[self.rows(task)])

    def __len__(self) -> int:
        return len(self.client)

    def rows(self, task: int) -> NDArray[np.int64]:
        """The rows of one task."""
        return np.flatnonzero(self.task == task)


class AllocationRule:
    """Decides each round who trains what. Subclass it, write `allocate`, and pass an instance as a method's allocation.

    `needs` names the signals to measure before the decision: `losses` (a forward pass on every client), `norms` (norms
    of the updates of all clients, so everyone trains), `residuals` (norms of the part of these updates that the
    aggregation's memory does not explain) or `expected_residuals` (what the server expects these to be, from past
    updates, if the aggregation remembers them; it costs no client anything). What the rule remembers between rounds is
    a plain dataclass of arrays: `start` creates it, `allocate` and `observe` return a new one. A rule without memory
    uses None.
    """

    needs: frozenset[str] = frozenset()

    def start(self, clients: int, tasks: int) -> Any:
        """The state before the first round."""
        return None

    def asks(self, view: RoundView, state: Any) -> Mapping[str, NDArray[np.bool_]]:
        """Which signals to measure this round, and for which pairs [clients, tasks]; by default all `needs`, for all
        pairs that can train."""
        return dict.fromkeys(self.needs, view.able)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """This round's allocation and the state after it."""
        raise TypeError(f"{type(self).__name__} does not say how to allocate.")

    @property
    def observes_losses(self) -> bool:
        """Whether it has an `observe` of its own: otherwise no table of losses is made for it."""
        return "observe" in vars(self) or type(self).observe is not AllocationRule.observe

    def observe(self, losses: NDArray[np.float64], view: RoundView, state: Any) -> Any:
        """The state after the round's training. `losses` [clients, tasks] are the mean training losses of the pairs
        that trained, nan for the others."""
        return state

    def report(self, view: RoundView, state: Any) -> Mapping[str, Any]:
        """What the round's record should show about the decision besides who was drawn, as plain numbers and lists."""
        return {}


@delegates(AllocationRule)
class AllocationWrapper(AllocationRule):
    """A rule around another rule, `inner`, which handles whatever a subclass does not override. Both share one state.

    `name` is the wrapper's name in configurations.
    """

    name = "wrapper"

    def __init__(self, inner: AllocationRule):
        if not isinstance(inner, AllocationRule):
            raise UserError(f"allocation '{self.name}': inner is {inner!r}; expected an allocation.")
        self.inner = inner

    @property
    def observes_losses(self) -> bool:
        """Whether it or the inner rule has an `observe` of its own."""
        own = "observe" in vars(self) or type(self).observe is not AllocationWrapper.observe
        return own or self.inner.observes_losses

    def to_inner(self, name: str, value: Any) -> Any:
        """The value that the inner rule gets for an argument."""
        return value
