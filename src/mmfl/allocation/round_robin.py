"""MFA-Rand, MFA-RR and FedCluster: clients are split into as many parts as there are tasks (Bhuyan et al. 2022)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.sampling import sample_clients
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, uniform

WAITING = -2  # in place of a part: the client was absent when the split was drawn


def split_clients(clients: NDArray[np.int64], parts: int, view: RoundView) -> NDArray[np.int64]:
    """Splits these clients into equal parts: the part of every client, [clients], -1 for those not listed."""
    part = np.full(len(view.sizes), -1, dtype=np.int64)
    part[clients] = (first_part(view, parts) + np.arange(len(clients))) % parts
    return part


def first_part(view: RoundView, parts: int) -> int:
    """The part that gets the first client, at random, so that the remainder favours no task."""
    return int(uniform(view.seed, Purpose.PARTS, view.round) * parts)


def allocate_tasks(view: RoundView, task: NDArray[np.int64], tasks: NDArray[np.int64]) -> Allocation:
    """Allocates to each client its task in `task` (-1: not sampled, -2: was absent), if it is present and can train it.

    The clients were split over `tasks`. As the split is uniform, each client that could be sampled takes each of these
    tasks with the same probability.
    """
    count = np.zeros(view.sizes.shape, dtype=np.int64)
    drawn, could_be_drawn = np.flatnonzero(view.present & (task >= 0)), view.present & (task > WAITING)
    count[drawn, task[drawn]] = 1
    able = view.able & could_be_drawn[:, None] & np.isin(np.arange(view.sizes.shape[1]), tasks)
    chance = len(drawn) / max(int(could_be_drawn.sum()), 1) / max(len(tasks), 1)
    return Allocation.of(count * able, able * chance / np.maximum(view.capacity, 1)[:, None])


class RandomSplit(AllocationRule):
    """MFA-Rand: a new uniform split into equal parts every round; part j trains task j."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Draws a split; each part trains its task."""
        tasks = np.flatnonzero(view.able.any(0))
        part = split_clients(sample_clients(view), max(len(tasks), 1), view)
        return allocate_tasks(view, np.where(part >= 0, tasks[part], -1) if len(tasks) else part, tasks), state


@dataclass
class Frame:
    """A split and the round in which it was drawn (0: none yet); `tasks` marks the tasks that it rotates over.

    `part` [clients] is -1 for a client that was present but not sampled, -2 for one that was absent.
    """

    drawn: int
    part: NDArray[np.int64]
    tasks: NDArray[np.bool_]


class RotatingSplit(AllocationRule):
    """MFA-RR: a split lasts for a frame of S rounds; in round u of the frame, part j trains task (j + u) mod S.

    So every client of a frame trains every task exactly once. Clients and tasks that arrive wait for the next frame.
    """

    def start(self, clients: int, tasks: int) -> Frame:
        """No split yet."""
        return Frame(0, np.full(clients, -1, dtype=np.int64), np.zeros(tasks, dtype=bool))

    def allocate(self, view: RoundView, state: Frame) -> tuple[Allocation, Frame]:
        """Draws a split in the first round of a frame and rotates it in the others."""
        if frame_ended(view, state):
            present_tasks = np.any(view.able, axis=0)
            part = split_clients(sample_clients(view), max(int(present_tasks.sum()), 1), view)
            state = Frame(view.round, np.where(view.present, part, WAITING), present_tasks)
        return rotate(view, state, state.part), state


class FixedSplit(RotatingSplit):
    """FedCluster: the same rotation, of a split of all clients that is drawn once (Chen et al. 2020).

    If the budget does not cover all clients, each round samples the ones that train. A client that arrives joins the
    smallest part; when a task arrives, a new split is drawn at the end of the frame.
    """

    def allocate(self, view: RoundView, state: Frame) -> tuple[Allocation, Frame]:
        """Draws the split once and rotates it from then on."""
        present_tasks, sampled = np.any(view.able, axis=0), sample_clients(view)
        if frame_ended(view, state) and (present_tasks & ~state.tasks).any():
            part = np.full(len(view.sizes), -1, dtype=np.int64)
            state = Frame(view.round, part, present_tasks)
        parts = max(int(state.tasks.sum()), 1)
        order = np.argsort(view.uniform(Purpose.PARTS)[:, 0], kind="stable")
        new = order[view.present[order] & (state.part[order] < 0)]
        if len(new):
            part = state.part.copy()
            filled = np.bincount(part[part >= 0], minlength=parts)
            part[new] = _join_smallest(filled, len(new), first_part(view, parts))
            state = Frame(state.drawn, part, state.tasks)
        return rotate(view, state, np.where(np.isin(np.arange(len(state.part)), sampled), state.part, -1)), state


def frame_ended(view: RoundView, frame: Frame) -> bool:
    """Whether the frame is over, or none has begun."""
    length = int(frame.tasks.sum())
    return length == 0 or (view.round - frame.drawn) % length == 0


def rotate(view: RoundView, frame: Frame, part: NDArray[np.int64]) -> Allocation:
    """Part j trains task (j + u) mod S in round u of the frame; clients without a part train nothing."""
    tasks = np.flatnonzero(frame.tasks)
    if not len(tasks):
        return allocate_tasks(view, part, tasks)
    turn = (part + view.round - frame.drawn) % len(tasks)
    return allocate_tasks(view, np.where(part >= 0, tasks[turn], part), tasks)


def _join_smallest(filled: NDArray[np.int64], newcomers: int, first: int) -> NDArray[np.int64]:
    """A part for each newcomer that keeps the sizes as equal as possible: each joins the smallest part, and of several
    smallest parts the next one from part `first` on."""
    parts = np.roll(np.arange(len(filled)), -first)
    place = filled[parts] + np.arange(newcomers)[:, None]
    lowest: NDArray[np.int64] = np.argsort(place, axis=None, kind="stable")[:newcomers] % len(filled)
    return parts[lowest]
