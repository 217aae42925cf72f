"""Draws with given random numbers, and with them all outcomes of each draw."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction

import numpy as np
import pytest

from conftest import every_draw, view_of
from mmfl.allocation import sampling
from mmfl.federation import RoundView
from mmfl.randomness import Purpose


@dataclass(frozen=True, eq=False)
class Told(RoundView):
    """A view whose random numbers are those told, by purpose."""

    told: dict = field(default_factory=dict)

    def uniform(self, purpose, columns=1):
        return np.reshape(np.asarray(self.told[purpose], dtype=float), (len(self.sizes), columns))

    def uniform_of(self, purpose, client, column=None):
        columns = np.size(self.told[purpose]) // len(self.sizes)
        return self.uniform(purpose, columns)[client, 0 if column is None else column]

    def below(self, bound, purpose, columns=1):
        return np.nonzero(self.uniform(purpose, columns) < bound)


def told(view: RoundView, **numbers) -> Told:
    """The view with these random numbers: [clients, columns] for a purpose, such as `tasks`."""
    plain = {each.name: getattr(view, each.name) for each in fields(view)}
    return Told(**plain, told={Purpose[name.upper()]: values for name, values in numbers.items()})


def systematic_at(u, p, capacity, order=None) -> np.ndarray:
    """The systematic draw with its first point at u and the clients in a given order."""
    place = np.argsort(np.arange(len(p)) if order is None else order) / len(p)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "uniform", lambda *address: u)
        return sampling.systematic(np.asarray(p), told(view_of(np.asarray(p) > 0, capacity), clients=place))


def without_repeats_at(numbers, p, capacity) -> np.ndarray:
    """The draw without repeats, given every client's random number."""
    return sampling.without_repeats(p, told(view_of(p > 0, capacity), tasks=numbers))


def pieces(lengths: Iterable[float]) -> list[tuple[Fraction, Fraction]]:
    """Where draws may change as u goes from 0 to 1, for cells of these lengths on a line: (from, to) of each piece."""
    ends = itertools.accumulate(map(Fraction, lengths), initial=Fraction(0))
    cuts = sorted({end % 1 for end in ends} | {Fraction(1)})
    return list(itertools.pairwise(cuts))


def middle(piece: tuple[Fraction, Fraction]) -> float:
    return float(sum(piece) / 2)


def every_systematic_draw(p, capacity) -> Iterator[tuple[Fraction, np.ndarray]]:
    """All outcomes of a systematic draw, with their chances: each order of the clients, each piece of u."""
    for order in itertools.permutations(range(len(p))):
        for piece in pieces((p * capacity[:, None])[list(order)].ravel()):
            chance = (piece[1] - piece[0]) / math.factorial(len(p))
            yield chance, systematic_at(middle(piece), p, capacity, order)


def every_draw_without_repeats(p, capacity) -> Iterator[tuple[Fraction, np.ndarray]]:
    """All outcomes of a draw without repeats, with their chances: every client has a random number of its own."""
    for choice in itertools.product(*map(pieces, p * capacity[:, None])):
        chance = math.prod(high - low for low, high in choice)
        yield chance, without_repeats_at([middle(piece) for piece in choice], p, capacity)


EVERY = {
    "independent": every_draw,
    "systematic": every_systematic_draw,
    "without-repeats": every_draw_without_repeats,
}


def outcomes(kind: str, p, capacity) -> dict[bytes, float]:
    """The chance of each table of counts under a draw."""
    chances: dict[bytes, float] = {}
    for chance, count in EVERY[kind](p, capacity):
        key = count.astype(np.int64).tobytes()
        chances[key] = chances.get(key, 0) + chance
    return chances
