"""Allocation: the decision of a round; AllocationRule: what makes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.delegation import delegates
from mmfl.errors import UserError
from mmfl.federation import RoundView


@dataclass(frozen=True, eq=False)
class Allocation:
    """Which clients train which tasks: one row per (client, task) that was drawn.

    `count` processors of `client` were drawn for `task`; `probability` is the chance that a given processor of that
    client is drawn for it (expected count / capacity). `probabilities` is the same over all [clients, tasks].

    `certain` says that nothing was left to chance, `beyond_capacity` that clients may train more tasks at a time than
    they can: for yardsticks such as full participation, which no capacity binds.
    """

    client: NDArray[np.int64]
    task: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    certain: bool = False
    beyond_capacity: bool = False

    @classmethod
    def of(cls, count: NDArray[np.int64], probabilities: NDArray[np.float64], **options: bool) -> "Allocation":
        """From tables [clients, tasks]: rows in the order of tasks, then clients; options are the last two fields."""
        task, client = np.nonzero(count.T)
        return cls(client, task, count[client, task], probabilities[client, task], probabilities, **options)

    def __len__(self) -> int:
        return len(self.client)

    def rows(self, task: int) -> NDArray[np.int64]:
        """The rows of one task."""
        return np.flatnonzero(self.task == task)


class AllocationRule:
    """Decides each round who trains what. Subclass it, write `allocate`, and pass the object as a method's allocation.

    `needs` names the signals to measure before the decision: `losses` (a forward pass of every client), `norms` (of
    the updates of all clients: everyone trains) or `residuals` (norms of what the aggregation's memory does not
    explain of them). What the rule must remember between rounds is the plain dataclass of arrays that `start` makes
    and `allocate` and `observe` return renewed; without memory it is None.
    """

    needs: frozenset[str] = frozenset()

    def start(self, clients: int, tasks: int) -> Any:
        """The state before the first round."""
        return None

    def asks(self, view: RoundView, state: Any) -> Mapping[str, NDArray[np.bool_]]:
        """The signals to measure this round and for which pairs [clients, tasks]: by default all, for all that can."""
        return dict.fromkeys(self.needs, view.able)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """This round's allocation and the state after it."""
        raise TypeError(f"{type(self).__name__} does not say how to allocate.")

    def observe(self, losses: NDArray[np.float64], view: RoundView, state: Any) -> Any:
        """The state after the round's training; `losses` [clients, tasks] are the mean losses that the drawn clients
        saw while they trained, nan for everybody else."""
        return state

    def report(self, view: RoundView, state: Any) -> Mapping[str, Any]:
        """What a round's record should show of the decision besides who was drawn, as plain numbers and lists."""
        return {}


@delegates(AllocationRule)
class AllocationWrapper(AllocationRule):
    """A rule around another, `inner`, which answers whatever a subclass does not override. Both share one state.

    `name` is the name of the wrapper in configurations.
    """

    name = "wrapper"

    def __init__(self, inner: AllocationRule):
        if not isinstance(inner, AllocationRule):
            raise UserError(f"allocation '{self.name}': inner is {inner!r}; expected an allocation.")
        self.inner = inner

    def to_inner(self, name: str, value: Any) -> Any:
        """An argument as the inner rule gets it."""
        return value
