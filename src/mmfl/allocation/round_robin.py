"""MFA-Rand, MFA-RR and FedCluster: clients are split into as many parts as there are tasks (Bhuyan et al. 2022).

With priorities there are as many parts as slots, of which a task has the more the higher its priority (`slots_of`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.sampling import sample_clients
from mmfl.allocation.slots import slots_of
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, uniform

WAITING = -2  # in place of a part: the client was absent when the split was drawn


@dataclass
class Frame:
    """A split and the round in which it was drawn (0: none yet); `tasks` marks the tasks that it rotates over.

    `part` [clients] is -1 for a client that was present but not sampled, -2 for one that was absent.
    """

    drawn: int
    part: NDArray[np.int64]
    tasks: NDArray[np.bool_]


def draw_frame(view: RoundView) -> Frame:
    """Splits the clients of this round into equal parts, as many as the tasks have slots."""
    tasks, sampled = view.trainable, sample_clients(view)
    parts = max(len(slots_of(view.priority, tasks)), 1)
    part = np.where(view.present, -1, WAITING)
    part[sampled] = (first_part(view, parts) + np.arange(len(sampled))) % parts
    return Frame(view.round, part, tasks)


def first_part(view: RoundView, parts: int) -> int:
    """The part that gets the first client, at random, so that the remainder favours no task."""
    return int(uniform(view.seed, Purpose.PARTS, view.round) * parts)


def rotate(view: RoundView, frame: Frame) -> Allocation:
    """Part j trains the task of slot (j + u) mod L in round u of the frame; a client trains if it is present and has
    the task.

    As the split is uniform, each client that could be sampled is in each slot of the frame with the same probability.
    """
    slots, count = slots_of(view.priority, frame.tasks), np.zeros(view.sizes.shape, dtype=np.int64)
    drawn, could_be_drawn = np.flatnonzero(view.present & (frame.part >= 0)), view.present & (frame.part > WAITING)
    if len(slots):
        count[drawn, slots[(frame.part[drawn] + view.round - frame.drawn) % len(slots)]] = 1
    able = view.able & could_be_drawn[:, None] & frame.tasks
    slots_of_task = np.bincount(slots, minlength=view.sizes.shape[1])
    chance = len(drawn) / max(int(could_be_drawn.sum()), 1) * slots_of_task / max(len(slots), 1)
    return Allocation.of(count * able, able * chance / np.maximum(view.capacity, 1)[:, None])


class RandomSplit(AllocationRule):
    """MFA-Rand: a new uniform split into equal parts every round; part j trains task j."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Draws a split; each part trains its task."""
        return rotate(view, draw_frame(view)), state


class RotatingSplit(AllocationRule):
    """MFA-RR: a split lasts for a frame of S rounds; in round u of the frame, part j trains task (j + u) mod S.

    So every client of a frame trains every task exactly once or, with priorities, as often as it has slots. Clients
    and tasks that arrive wait for the next frame.
    """

    def start(self, clients: int, tasks: int) -> Frame:
        """No split yet."""
        return Frame(0, np.full(clients, -1, dtype=np.int64), np.zeros(tasks, dtype=bool))

    def allocate(self, view: RoundView, state: Frame) -> tuple[Allocation, Frame]:
        """Draws a split in the first round of a frame and rotates it in the others."""
        state = draw_frame(view) if frame_ended(view, state) else state
        return rotate(view, state), state


class FixedSplit(RotatingSplit):
    """FedCluster: the same rotation, of a split of all clients that is drawn once (Chen et al. 2020).

    If the budget does not cover all clients, each round samples the ones that train. A client that arrives joins the
    smallest part; when a task arrives, a new split is drawn at the end of the frame.
    """

    def allocate(self, view: RoundView, state: Frame) -> tuple[Allocation, Frame]:
        """Draws the split once and rotates it from then on."""
        present_tasks, sampled = view.trainable, sample_clients(view)
        if frame_ended(view, state) and (present_tasks & ~state.tasks).any():
            state = Frame(view.round, np.full(len(view.sizes), -1, dtype=np.int64), present_tasks)
        parts = max(len(slots_of(view.priority, state.tasks)), 1)
        order = np.argsort(view.uniform(Purpose.PARTS)[:, 0], kind="stable")
        new = order[view.present[order] & (state.part[order] < 0)]
        if len(new):
            part = state.part.copy()
            filled = np.bincount(part[part >= 0], minlength=parts)
            part[new] = _join_smallest(filled, len(new), first_part(view, parts))
            state = replace(state, part=part)
        training = np.where(np.isin(np.arange(len(state.part)), sampled), state.part, -1)
        return rotate(view, replace(state, part=training)), state


def frame_ended(view: RoundView, frame: Frame) -> bool:
    """Whether the frame is over, or none has begun."""
    length = len(slots_of(view.priority, frame.tasks))
    return length == 0 or (view.round - frame.drawn) % length == 0


def _join_smallest(filled: NDArray[np.int64], newcomers: int, first: int) -> NDArray[np.int64]:
    """A part for each newcomer that keeps the sizes as equal as possible: each joins the smallest part, and of several
    smallest parts the next one from part `first` on."""
    parts = np.roll(np.arange(len(filled)), -first)
    place = filled[parts] + np.arange(newcomers)[:, None]
    lowest: NDArray[np.int64] = np.argsort(place, axis=None, kind="stable")[:newcomers] % len(filled)
    return parts[lowest]
