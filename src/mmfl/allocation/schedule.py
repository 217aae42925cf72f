"""Allocations made of another one: all the budget to one task at a time, or a first round with everyone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule, AllocationWrapper
from mmfl.allocation.full import Full
from mmfl.errors import UserError
from mmfl.federation import RoundView


class OneTask(AllocationWrapper):
    """All the budget of a round to one task, allocated by `inner` as if there were no other."""

    name = "one-task"

    def task(self, view: RoundView) -> int:
        """The task of this round."""
        raise TypeError(f"{type(self).__name__} does not say which task is next.")

    def to_inner(self, name: str, value: Any) -> Any:
        """The inner allocation sees a round with this task alone."""
        return self._restricted(value) if name == "view" else value

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """The inner allocation; a client's one training is a share of all its processors."""
        restricted = self._restricted(view)
        inner, state = self.inner.allocate(restricted, state)
        count = np.zeros(view.sizes.shape, dtype=np.int64)
        count[inner.client, inner.task] = inner.count
        processors = restricted.capacity / np.maximum(view.capacity, 1)
        probabilities = inner.probabilities * processors[:, None]
        limits = {"certain": inner.certain, "beyond_capacity": inner.beyond_capacity}
        return Allocation.of(count, probabilities, **limits), state

    def _restricted(self, view: RoundView) -> RoundView:
        tasks = np.arange(view.sizes.shape[1])
        return view.only(tasks == self.task(view))


class RoundRobinTasks(OneTask):
    """RoundRobin-X: task t mod S in round t, of the tasks that somebody has."""

    name = "round-robin-tasks"

    def task(self, view: RoundView) -> int:
        """The next in turn."""
        here = np.flatnonzero(view.able.any(0))
        return int(here[view.round % len(here)]) if len(here) else 0


class SequentialTasks(OneTask):
    """One task after another, each for so many rounds; then it is done and the last one goes on.

    A task that nobody has (it may yet arrive) leaves its round to the next one after it, else to the last before it.
    """

    name = "sequential-tasks"

    def __init__(self, inner: AllocationRule, rounds: int = 100):
        super().__init__(inner)
        if not isinstance(rounds, int | np.integer) or rounds < 1:
            raise UserError(f"allocation '{self.name}': rounds is {rounds}; expected a whole number, at least 1.")
        self.rounds = rounds

    def task(self, view: RoundView) -> int:
        """The first task that is not done."""
        here = np.flatnonzero(view.able.any(0))
        left = here[here >= (view.round - 1) // self.rounds]
        return int(left[0] if len(left) else here.max(initial=0))


class WarmUp(AllocationWrapper):
    """Every client trains every task in the first round, `inner` decides in the others. The cost counts like any, and
    the inner allocation learns from the first round too."""

    name = "warm-up"

    def asks(self, view: RoundView, state: Any) -> Mapping[str, NDArray[np.bool_]]:
        """Nothing in the first round, what the inner allocation asks in the others."""
        return {} if view.round == 1 else self.inner.asks(view, state)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Full participation first."""
        return (Full() if view.round == 1 else self.inner).allocate(view, state)
