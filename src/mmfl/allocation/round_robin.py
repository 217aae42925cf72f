"""MFA-Rand, MFA-RR and FedCluster: clients are split into as many parts as there are tasks (Bhuyan et al. 2022).

With priorities there are as many parts as slots, of which a task has the more the higher its priority (`slots_of`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.probabilities import ByKind
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
    sampled, sampled_part = draw_split(view)
    part = np.where(view.present, -1, WAITING)
    part[sampled] = sampled_part
    return Frame(view.round, part, view.trainable)


def draw_split(view: RoundView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The clients that are sampled, and the part of each."""
    sampled, parts = sample_clients(view), max(len(slots_of(view.priority, view.trainable)), 1)
    return sampled, (first_part(view, parts) + np.arange(len(sampled))) % parts


def first_part(view: RoundView, parts: int) -> int:
    """The part that gets the first client, at random, so that the remainder favours no task."""
    return int(uniform(view.seed, Purpose.PARTS, view.round) * parts)


def rotate(
    view: RoundView,
    tasks: NDArray[np.bool_],
    client: NDArray[np.int64],
    part: NDArray[np.int64],
    turn: int = 0,
    waiting: NDArray[np.bool_] | None = None,
) -> Allocation:
    """Part j trains the task of slot (j + u) mod L in round u of the frame, `turn`; a client trains if it has the task.

    `client` are the present clients of the split, and `part` the part of each. Those that are `waiting` [clients] for
    the next frame could not be drawn. As the split is uniform, each client that could be sampled is in each slot of the
    frame with the same probability.
    """
    slots, kinds, number = slots_of(view.priority, tasks), view.kinds, view.number_present
    if waiting is not None and waiting.any():
        kinds, number = kinds.split(waiting), number - int(waiting.sum())
    task = slots[(part + turn) % len(slots)] if len(slots) else np.zeros_like(client)
    trains = view.able[client, task] & tasks[task]
    slots_of_task = np.bincount(slots, minlength=len(tasks))
    chance = len(client) / max(number, 1) * slots_of_task / max(len(slots), 1)
    able = kinds.able & tasks
    able[len(view.kinds.able) :] = False
    rows = able * chance / np.maximum(kinds.capacity, 1)[:, None]
    return Allocation.of_pairs(client[trains], task[trains], ByKind(rows, kinds))


class RandomSplit(AllocationRule):
    """MFA-Rand: a new uniform split into equal parts every round; part j trains task j."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """Draws a split; each part trains its task."""
        return rotate(view, view.trainable, *draw_split(view)), state


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
        client = np.flatnonzero(view.present & (state.part >= 0))
        waiting = view.present & (state.part == WAITING)
        return rotate(view, state.tasks, client, state.part[client], view.round - state.drawn, waiting), state


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
        new = np.flatnonzero(view.present & (state.part < 0))
        if len(new):
            new = new[np.argsort(view.uniform_of(Purpose.PARTS, new), kind="stable")]
            part = state.part.copy()
            filled = np.bincount(part[part >= 0], minlength=parts)
            part[new] = _join_smallest(filled, len(new), first_part(view, parts))
            state = replace(state, part=part)
        return rotate(view, state.tasks, sampled, state.part[sampled], view.round - state.drawn), state


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
