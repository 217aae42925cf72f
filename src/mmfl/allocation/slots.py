"""Weighted round robin: the order in which tasks take turns, the more often the higher their priority."""

import numpy as np
from numpy.typing import NDArray

MAX_SLOTS = 100
"""The largest number of slots of one task, so that a frame stays short enough to end."""


def slots_of(priority: NDArray[np.float64], tasks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The task of each slot of a frame, in which the marked `tasks` [tasks] take turns; one slot each, in order, if
    their priorities are equal.

    The slots of a task are spread evenly: if it has n of L slots, it has n t / L of the first t, rounded down or up. To
    that end, the next slot goes to the task with the smallest (slots so far + 1) / n among those that would not exceed
    their share, rounded up (the quota method of Balinski & Young 1975).

    >>> slots_of(np.array([2.0, 1.0, 1.0]), np.array([True, True, True])).tolist()
    [0, 1, 0, 2]
    """
    marked = np.flatnonzero(tasks)
    slots = count_slots(priority[marked])
    length, order, given = int(slots.sum()), [], np.zeros(len(marked), dtype=np.int64)
    for t in range(length):
        due = np.where(given * length < (t + 1) * slots, (given + 1) / slots, np.inf)
        task = int(due.argmin())
        given[task] += 1
        order.append(task)
    return marked[order]


def count_slots(priority: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers in the ratio of the priorities, [tasks]: the smallest priority gets n slots, the others n times
    their ratio to it, rounded, and at most 100. Where one is more than 100 times another, the largest gets 100 slots,
    the others in proportion, and all at least one.

    n is the number from 1 to 10 with the smallest relative error, and of equally good ones the smallest: 0.5, 0.5, 1
    become 1, 1, 2 slots; 1.5, 1 become 3, 2.

    >>> count_slots(np.array([1.5, 1.0])).tolist(), count_slots(np.array([np.pi, 1.0])).tolist()
    ([3, 2], [22, 7])
    """
    ratio = priority / priority.min(initial=np.inf)
    if ratio.max(initial=0) > MAX_SLOTS:
        in_proportion: NDArray[np.int64] = np.maximum(np.rint(MAX_SLOTS * ratio / ratio.max()), 1).astype(np.int64)
        return in_proportion
    choices = [np.minimum(np.rint(n * ratio), MAX_SLOTS).astype(np.int64) for n in range(1, 11)]
    errors = [np.abs(slots / (n * ratio) - 1).max(initial=0.0) for n, slots in enumerate(choices, 1)]
    best: NDArray[np.int64] = choices[int(np.argmin(np.round(errors, 9)))]
    return best
