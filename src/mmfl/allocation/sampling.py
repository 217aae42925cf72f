"""Draws: who trains what, sampled from given probabilities.

Every draw preserves the marginals, E[count] = capacity * p, so an estimate that is unbiased under one is unbiased under
all of them.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.probabilities import ByKind
from mmfl.errors import UserError, nearest
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, uniform

Draw = Callable[[NDArray[np.float64], RoundView], NDArray[np.int64]]
"""Turns probabilities p[i, s] of one processor of client i taking task s into counts, whose mean is capacity * p."""


def clients_to_draw(view: RoundView) -> int:
    """K: how many clients train, by the budget, where each trains one task."""
    return min(view.number_present, max(1, round(view.budget)))


def sample_clients(view: RoundView) -> NDArray[np.int64]:
    """The clients of this round in random order, as many as the budget allows: those with the smallest numbers.

    Numbers are uniform, so that almost always enough clients are below a bound that is a little larger than their
    share; if there are not, all are looked at.
    """
    number = clients_to_draw(view)
    likely = (number + 6 * number**0.5 + 10) / max(view.number_present, 1)
    for bound in (likely, 1.0):
        client, _ = view.below(bound, Purpose.CLIENTS)
        client = client[view.present[client]]
        if len(client) >= number:
            break
    return client[np.argsort(view.uniform_of(Purpose.CLIENTS, client), kind="stable")][:number]


def independent(probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
    """Each processor takes task s with probability p[i, s], or none, independently of all other processors."""
    upper = np.cumsum(probabilities, axis=1)
    lower = np.hstack([np.zeros((len(upper), 1)), upper[:, :-1]])
    count = np.zeros(probabilities.shape, dtype=np.int64)
    chance = view.uniform(Purpose.TASKS, columns=int(view.capacity.max(initial=0)))
    for processor in range(chance.shape[1]):
        u = chance[:, processor, None]
        takes = (u < upper) & (u >= lower)
        count += takes & (processor < view.capacity)[:, None]
    return count


def independent_by_kind(probabilities: ByKind, view: RoundView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same draw from probabilities by kind, as pairs of client and task, one for each active processor: only the
    numbers that are small enough for some kind of clients are looked at."""
    upper = np.cumsum(probabilities.rows, axis=1)
    processors = int(view.kinds.capacity.max(initial=0))
    client, processor = view.below(upper.max(initial=0.0), Purpose.TASKS, processors)
    exists = processor < view.capacity[client]
    client, processor = client[exists], processor[exists]
    task = (view.uniform_of(Purpose.TASKS, client, processor)[:, None] >= upper[probabilities.kinds.of[client]]).sum(1)
    active = task < upper.shape[1]
    return client[active], task[active]


def systematic(probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
    """Systematic sampling: the number of trainings is always the expected number, rounded down or up.

    The (client, task) cells, each as long as its expected count, lie side by side on a line, all cells of a client
    together and clients in random order. The cells that contain the points u, u + 1, u + 2, ... are drawn. A cell no
    longer than 1 is drawn at most once, and a client at most as often as its capacity, so a client trains a task twice
    only if its expected count exceeds 1.
    """
    order = ascending(view.uniform(Purpose.CLIENTS)[:, 0])
    ends = np.cumsum((probabilities @ np.ones(probabilities.shape[1]) * view.capacity)[order])
    total = ends[-1] if len(ends) else 0.0
    whole = round(total)
    if 0 < abs(total - whole) < 1e-9 * total:  # a whole budget stays whole despite rounding errors in the sum
        ends = np.where(ends == total, whole, ends * (whole / total))
    first = float(uniform(view.seed, Purpose.POINTS, view.round))
    drawn = np.flatnonzero(_count_points(ends, first))  # few clients are drawn, so look at their cells only
    client, start, end = order[drawn], np.append(0.0, ends)[drawn, None], ends[drawn, None]
    lengths = np.cumsum(probabilities[client] * view.capacity[client, None], axis=1)
    cells = np.where(lengths < lengths[:, -1:], np.minimum(start + lengths, end), end)
    count = np.zeros(probabilities.shape, dtype=np.int64)
    count[client] = _count_points(cells, first, start)
    return count


def ascending(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places of the numbers in ascending order, of equal ones the first before the others.

    Only equal numbers need a stable sort, which takes several times as long.
    """
    order = np.argsort(numbers)
    ascending = numbers[order]
    equal = (ascending[1:] == ascending[:-1]).any()
    return np.argsort(numbers, kind="stable") if equal else order


def without_repeats(probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
    """A systematic draw for each client, independently of the others: no task twice if B p <= 1."""
    return _count_points(np.cumsum(probabilities * view.capacity[:, None], axis=1), view.uniform(Purpose.TASKS))


def _count_points(
    ends: NDArray[np.float64], first: float | NDArray[np.float64], start: float | NDArray[np.float64] = 0.0
) -> NDArray[np.int64]:
    """How many of the points first, first + 1, ... lie in each cell of a line from `start`, given the cells' ends."""
    count: NDArray[np.int64] = np.diff(_count_before(ends, first), prepend=_count_before(start, first)).astype(np.int64)
    return count


def _count_before(place: float | NDArray[np.float64], first: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """How many of the points first, first + 1, ... lie before a place: its integer part, plus one if its fraction
    exceeds `first`. (ceil(place - first) would suffer from rounding.)"""
    whole: NDArray[np.float64] = np.floor(place)
    return whole + (first < place - whole)


DRAWS: Mapping[str, Draw] = {
    "independent": independent,
    "systematic": systematic,
    "without-repeats": without_repeats,
}


def draw_named(draw: str | Draw) -> Draw:
    """The draw of this name; a function is returned as it is."""
    if callable(draw):
        return draw
    if draw not in DRAWS:
        raise UserError(f"unknown draw '{draw}': {nearest(str(draw), DRAWS)}")
    return DRAWS[draw]
