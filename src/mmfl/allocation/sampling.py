"""Drawing who trains what from given probabilities.

Every draw keeps the marginals, E[count] = capacity * p, so that whatever is unbiased under one is under all of them.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmfl.errors import UserError, nearest
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, uniform


class Draw(Protocol):
    """Turns probabilities p[i, s] of one processor of client i taking task s into counts [clients, tasks]."""

    def __call__(self, probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
        """How many processors of each client train each task; on average capacity * probabilities."""
        ...


def independent(probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
    """Each processor takes task s with probability p[i, s], none with the rest, whatever the others do."""
    upper = np.cumsum(probabilities, axis=1)
    lower = np.hstack([np.zeros((len(upper), 1)), upper[:, :-1]])
    count = np.zeros(probabilities.shape, dtype=np.int64)
    chance = view.uniform(Purpose.TASKS, columns=int(view.capacity.max(initial=0)))
    for processor in range(chance.shape[1]):
        u = chance[:, processor, None]
        takes = (u < upper) & (u >= lower)
        count += takes & (processor < view.capacity)[:, None]
    return count


def systematic(probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
    """Exactly the floor or the ceiling of the expected number of trainings: a budget that is a limit.

    The cells (client, task), each as long as its expected count, lie on a line, a client's side by side, clients in
    random order; the points u, u + 1, u + 2, ... fall on those that are drawn. A cell no longer than 1 is met at
    most once and a client as often as its capacity at most, so no client trains one task twice if it can be helped.
    """
    order = np.argsort(view.uniform(Purpose.CLIENTS)[:, 0], kind="stable")
    ends = np.cumsum((probabilities.sum(1) * view.capacity)[order])
    total = ends[-1] if len(ends) else 0.0
    whole = round(total)
    if 0 < abs(total - whole) < 1e-9 * total:  # a whole budget stays one, whatever the rounding of the sum
        ends = np.where(ends == total, whole, ends * (whole / total))
    first = float(uniform(view.seed, Purpose.POINTS, view.round))
    met = np.flatnonzero(_points(ends, first))  # most clients are not: only the cells of these are looked at
    client, start, end = order[met], np.append(0.0, ends)[met, None], ends[met, None]
    lengths = np.cumsum(probabilities[client] * view.capacity[client, None], axis=1)
    cells = np.where(lengths < lengths[:, -1:], np.minimum(start + lengths, end), end)
    count = np.zeros(probabilities.shape, dtype=np.int64)
    count[client] = _points(cells, first, start)
    return count


def without_repeats(probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
    """Clients independently of each other, each a systematic draw of its own: no task twice where B p <= 1."""
    return _points(np.cumsum(probabilities * view.capacity[:, None], axis=1), view.uniform(Purpose.TASKS))


def _points(
    ends: NDArray[np.float64], first: float | NDArray[np.float64], start: float | NDArray[np.float64] = 0.0
) -> NDArray[np.int64]:
    """How many of the points first, first + 1, ... lie in each cell of a line from `start`, given the cells' ends."""
    drawn: NDArray[np.int64] = np.diff(_before(ends, first), prepend=_before(start, first)).astype(np.int64)
    return drawn


def _before(place: float | NDArray[np.float64], first: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """How many of the points lie before a place: as many as its whole part, and one more where its fraction lies
    beyond the first point; the difference of place and point would be rounded."""
    whole: NDArray[np.float64] = np.floor(place)
    return whole + (first < place - whole)


DRAWS: Mapping[str, Draw] = {
    "independent": independent,
    "systematic": systematic,
    "without-repeats": without_repeats,
}


def draw_named(draw: str | Draw) -> Draw:
    """A draw by its name in a configuration, or as it is."""
    if callable(draw):
        return draw
    if draw not in DRAWS:
        raise UserError(f"unknown draw '{draw}': {nearest(str(draw), DRAWS)}")
    return DRAWS[draw]
