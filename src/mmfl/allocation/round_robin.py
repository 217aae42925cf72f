"""MFA-Rand, MFA-RR and FedCluster: clients split into as many parts as there are tasks (Bhuyan et al. 2022)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, uniform

WAITING = -2  # in place of a part: who was not there when a split was drawn


def sampled(view: RoundView) -> NDArray[np.int64]:
    """The clients of this round in random order, as many as the budget allows."""
    clients = np.flatnonzero(view.present)
    drawn = min(len(clients), max(1, round(view.budget)))
    return clients[np.argsort(view.uniform(Purpose.CLIENTS)[clients, 0], kind="stable")][:drawn]


def dealt(clients: NDArray[np.int64], parts: int, view: RoundView) -> NDArray[np.int64]:
    """These clients dealt into equal parts, [all clients]; -1 for the others."""
    part = np.full(len(view.sizes), -1, dtype=np.int64)
    part[clients] = (first_part(view, parts) + np.arange(len(clients))) % parts
    return part


def first_part(view: RoundView, parts: int) -> int:
    """The part that is dealt first, at random, so that no task is favoured by the remainder."""
    return int(uniform(view.seed, Purpose.PARTS, view.round) * parts)


def on_tasks(view: RoundView, task: NDArray[np.int64], tasks: NDArray[np.int64]) -> Allocation:
    """Each client on the task named for it (-1: not sampled, -2: could not be), where it is there and can train it.

    `tasks` are those that were split over. By symmetry of the random split, of the clients that could be sampled each
    takes each of the tasks with the same probability.
    """
    count = np.zeros(view.sizes.shape, dtype=np.int64)
    drawn, asked = np.flatnonzero(view.present & (task >= 0)), view.present & (task > WAITING)
    count[drawn, task[drawn]] = 1
    able = view.able & asked[:, None] & np.isin(np.arange(view.sizes.shape[1]), tasks)
    chance = len(drawn) / max(int(asked.sum()), 1) / max(len(tasks), 1)
    return Allocation.of(count * able, able * chance / np.maximum(view.capacity, 1)[:, None])


class RandomSplit(AllocationRule):
    """MFA-Rand: a new uniform split into equal parts every round; part j trains task j."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Split and train."""
        tasks = np.flatnonzero(view.able.any(0))
        part = dealt(sampled(view), max(len(tasks), 1), view)
        return on_tasks(view, np.where(part >= 0, tasks[part], -1) if len(tasks) else part, tasks), state


@dataclass
class Frame:
    """A split and the round in which it was drawn (0: none yet); `tasks` marks those that it rotates over.

    `part` [clients] is -1 for who was there and not sampled, -2 for who was not there.
    """

    drawn: int
    part: NDArray[np.int64]
    tasks: NDArray[np.bool_]


class RotatingSplit(AllocationRule):
    """MFA-RR: a split lasts a frame of S rounds, in round u of which part j trains task (j + u) mod S.

    So every client of a frame meets every task exactly once. Clients and tasks that arrive wait for the next frame.
    """

    def start(self, clients: int, tasks: int) -> Frame:
        """No split yet."""
        return Frame(0, np.full(clients, -1, dtype=np.int64), np.zeros(tasks, dtype=bool))

    def allocate(self, view: RoundView, state: Frame) -> tuple[Allocation, Frame]:
        """Draw at the first round of a frame, rotate in the others."""
        if ended(view, state):
            here = np.any(view.able, axis=0)
            part = dealt(sampled(view), max(int(here.sum()), 1), view)
            state = Frame(view.round, np.where(view.present, part, WAITING), here)
        return rotated(view, state, state.part), state


class FixedSplit(RotatingSplit):
    """FedCluster: the same rotation of a split of all clients that is drawn once (Chen et al. 2020).

    Where the budget is less than everyone, each round samples whom it asks. A client that arrives joins the smallest
    part; a task that arrives makes for a new split at the end of the frame.
    """

    def allocate(self, view: RoundView, state: Frame) -> tuple[Allocation, Frame]:
        """Draw once, rotate ever after."""
        here, asked = np.any(view.able, axis=0), sampled(view)
        if ended(view, state) and (here & ~state.tasks).any():
            part = np.full(len(view.sizes), -1, dtype=np.int64)
            state = Frame(view.round, part, here)
        parts = max(int(state.tasks.sum()), 1)
        order = np.argsort(view.uniform(Purpose.PARTS)[:, 0], kind="stable")
        new = order[view.present[order] & (state.part[order] < 0)]
        if len(new):
            part = state.part.copy()
            filled = np.bincount(part[part >= 0], minlength=parts)
            part[new] = _smallest_first(filled, len(new), first_part(view, parts))
            state = Frame(state.drawn, part, state.tasks)
        return rotated(view, state, np.where(np.isin(np.arange(len(state.part)), asked), state.part, -1)), state


def ended(view: RoundView, frame: Frame) -> bool:
    """Whether a frame is over, or none has begun."""
    length = int(frame.tasks.sum())
    return length == 0 or (view.round - frame.drawn) % length == 0


def rotated(view: RoundView, frame: Frame, part: NDArray[np.int64]) -> Allocation:
    """Part j on task (j + u) mod S in round u of the frame; who has no part trains nothing."""
    tasks = np.flatnonzero(frame.tasks)
    if not len(tasks):
        return on_tasks(view, part, tasks)
    turn = (part + view.round - frame.drawn) % len(tasks)
    return on_tasks(view, np.where(part >= 0, tasks[turn], part), tasks)


def _smallest_first(filled: NDArray[np.int64], newcomers: int, first: int) -> NDArray[np.int64]:
    """A part for each newcomer such that sizes stay as equal as they can: each takes the lowest free place, of equally
    low ones the next from part `first` on."""
    parts = np.roll(np.arange(len(filled)), -first)
    place = filled[parts] + np.arange(newcomers)[:, None]
    lowest: NDArray[np.int64] = np.argsort(place, axis=None, kind="stable")[:newcomers] % len(filled)
    return parts[lowest]
