"""Wrappers: the whole budget for one task at a time, or a first round in which everyone trains."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule, AllocationWrapper
from mmfl.allocation.random import Full
from mmfl.allocation.slots import slots_of
from mmfl.checks import check, is_whole
from mmfl.federation import RoundView


class OneTask(AllocationWrapper):
    """Gives the whole budget of a round to one task, allocated by `inner` as if there were no other task."""

    name = "one-task"

    def task(self, view: RoundView) -> int:
        """The task of this round."""
        raise TypeError(f"{type(self).__name__} does not say which task is next.")

    def to_inner(self, name: str, value: Any) -> Any:
        """The inner rule gets a view with this task alone."""
        return self._restrict(value) if name == "view" else value

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """The inner allocation, its probabilities converted to the client's full capacity."""
        restricted = self._restrict(view)
        inner, state = self.inner.allocate(restricted, state)
        processors = restricted.capacity / np.maximum(view.capacity, 1)
        return inner.scaled(processors), state

    def _restrict(self, view: RoundView) -> RoundView:
        tasks = np.arange(view.sizes.shape[1])
        return view.only(tasks == self.task(view))


class RoundRobinTasks(OneTask):
    """RoundRobin-X: task t mod S in round t, counting only tasks that some client can train.

    With priorities it is the task of slot t mod L of their L slots.
    """

    name = "round-robin-tasks"

    def task(self, view: RoundView) -> int:
        """The task whose turn it is."""
        slots = slots_of(view.priority, view.trainable)
        return int(slots[view.round % len(slots)]) if len(slots) else 0


class SequentialTasks(OneTask):
    """One task after another, each for `rounds` rounds; after that, the last task continues.

    The task with the highest priority is first; tasks of equal priority follow each other in the order given.
    If no client can train the task (it may not have arrived yet), the next task takes its round, or the last one before
    it if there is no next.
    """

    name = "sequential-tasks"

    def __init__(self, inner: AllocationRule, rounds: int = 100):
        super().__init__(inner)
        check(is_whole(rounds, 1), f"allocation '{self.name}'", "rounds", rounds, "a whole number, at least 1")
        self.rounds = rounds

    def task(self, view: RoundView) -> int:
        """The first task whose rounds are not over."""
        order = np.argsort(-view.priority, kind="stable")
        trainable = np.flatnonzero(view.trainable[order])
        left = trainable[trainable >= (view.round - 1) // self.rounds]
        return int(order[left[0] if len(left) else trainable.max(initial=0)])


class WarmUp(AllocationWrapper):
    """Every client trains every task in the first round; `inner` decides in the others. The first round counts towards
    the costs, and the inner rule observes its losses."""

    name = "warm-up"

    def asks(self, view: RoundView, state: Any) -> Mapping[str, NDArray[np.bool_]]:
        """Nothing in the first round; after that, what the inner rule asks for."""
        return {} if view.round == 1 else self.inner.asks(view, state)

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Full participation in the first round, then the inner allocation."""
        return (Full() if view.round == 1 else self.inner).allocate(view, state)
