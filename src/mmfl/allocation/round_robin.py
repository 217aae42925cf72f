"""MFA-Rand, MFA-RR and FedCluster: clients split into as many parts as there are tasks (Bhuyan et al. 2022)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, uniform


def random_parts(view: RoundView, parts: int) -> NDArray[np.int64]:
    """The clients of this round, as many as the budget allows, dealt into equal parts; -1 for the others."""
    clients = np.flatnonzero(view.present)
    drawn = min(len(clients), max(1, round(view.budget)))
    order = clients[np.argsort(view.uniform(Purpose.CLIENTS)[clients, 0], kind="stable")][:drawn]
    part = np.full(len(view.sizes), -1, dtype=np.int64)
    first = int(uniform(view.seed, Purpose.PARTS, view.round) * parts)  # so that no task is favoured by the remainder
    part[order] = (first + np.arange(drawn)) % parts
    return part


def on_tasks(view: RoundView, task: NDArray[np.int64], tasks: NDArray[np.int64]) -> Allocation:
    """Each client on the task named for it (-1: none), where it can train it; `tasks` are those that were split over.

    By symmetry of the random split a client takes each of the tasks with the same probability.
    """
    count = np.zeros(view.sizes.shape, dtype=np.int64)
    drawn = np.flatnonzero(task >= 0)
    count[drawn, task[drawn]] = 1
    able = view.able & np.isin(np.arange(view.sizes.shape[1]), tasks)
    chance = len(drawn) / max(int(view.present.sum()), 1) / max(len(tasks), 1)
    return Allocation.of(count * able, able * chance / np.maximum(view.capacity, 1)[:, None])


class RandomSplit(AllocationRule):
    """MFA-Rand: a new uniform split into equal parts every round; part j trains task j."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Split and train."""
        tasks = np.flatnonzero(view.able.any(0))
        part = random_parts(view, max(len(tasks), 1))
        return on_tasks(view, np.where(part >= 0, tasks[part], -1) if len(tasks) else part, tasks), state


@dataclass
class Frame:
    """A split and the round in which it was drawn (0: none yet); `tasks` marks those that it rotates over."""

    drawn: int
    part: NDArray[np.int64]
    tasks: NDArray[np.bool_]


class RotatingSplit(AllocationRule):
    """MFA-RR: a split lasts a frame of S rounds, in round u of which part j trains task (j + u) mod S.

    So every client of a frame meets every task exactly once. With `redraw=False` one split serves for ever:
    FedCluster. A task that arrives waits for the next frame.
    """

    def __init__(self, redraw: bool = True):
        self.redraw = redraw

    def start(self, clients: int, tasks: int) -> Frame:
        """No split yet."""
        return Frame(0, np.full(clients, -1, dtype=np.int64), np.zeros(tasks, dtype=bool))

    def allocate(self, view: RoundView, state: Frame) -> tuple[Allocation, Frame]:
        """Draw at the first round of a frame, rotate in the others."""
        here = np.any(view.able, axis=0)
        length = int(state.tasks.sum())
        over = length == 0 or (view.round - state.drawn) % length == 0
        if over and (self.redraw or state.drawn == 0 or (here & ~state.tasks).any()):
            state = Frame(view.round, random_parts(view, max(int(here.sum()), 1)), here)
        tasks = np.flatnonzero(state.tasks)
        if not len(tasks):
            return on_tasks(view, state.part, tasks), state
        turn = (state.part + view.round - state.drawn) % len(tasks)
        return on_tasks(view, np.where(state.part >= 0, tasks[turn], -1), tasks), state
