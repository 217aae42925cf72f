"""ExpectedResiduals: how far each client's last update is likely to be from the one it would send now."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmfl.federation import RoundView
from mmfl.updates.store import ClientVectorStore
from mmfl.updates.updates import Updates

BINS_PER_OCTAVE = 4
_BINS = 1 + 20 * BINS_PER_OCTAVE  # up to an age of a million rounds
_SPREAD = 2.0  # bins at this distance count exp(-1) times as much
_CURVE_DISCOUNT = 0.95
_NORM_DISCOUNT = 0.9


@dataclass
class ExpectedResiduals:
    """What the server expects of ||G - h|| for each client of a task, from the updates that it received anyway.

    A client whose last update h is `age` rounds old has the expected residual ||h|| rho(age). The curve rho is one for
    all clients: rho(age)^2 is the sum of ||G - b h||^2 over that of ||h||^2, both weighted, of the updates G that came
    back at about that age, with the best b of that age. Ages are binned, four bins to a doubling, and each bin learns
    from its neighbours. A client never seen is expected to send an update of the mean norm of recent ones.

    What is known of a client that is absent or sends no valid update stays, and its age grows.

    `last` is the round of each client's last update (0: none) and `norm` its norm. `squares`, `products` and
    `stale_squares` are the sums of ||G||^2, `<G, h>` and ||h||^2 over received updates, [bins], each weighted by
    1 / ||G||^2 and by how recent it is. `norms` and `received` are such sums of norms and of ones.
    """

    last: NDArray[np.int64]
    norm: NDArray[np.float64]
    squares: NDArray[np.float64]
    products: NDArray[np.float64]
    stale_squares: NDArray[np.float64]
    norms: float = 0.0
    received: float = 0.0

    @classmethod
    def start(cls, clients: int) -> "ExpectedResiduals":
        """Nothing received."""
        return cls(
            np.zeros(clients, dtype=np.int64), np.zeros(clients), np.zeros(_BINS), np.zeros(_BINS), np.zeros(_BINS)
        )

    def smoothed_sums(self) -> NDArray[np.float64]:
        """Sums of ||G||^2, `<G, h>` and ||h||^2, [3, bins], each bin with its neighbours; 1, 0 and 1 before anything is
        known."""
        if not self.stale_squares.any():
            return np.repeat([[1.0], [0.0], [1.0]], _BINS, axis=1)
        return np.asarray(np.stack([self.squares, self.products, self.stale_squares]) @ NEIGHBOURS)

    def ratios(self) -> NDArray[np.float64]:
        """rho of each bin; 1 before anything is known."""
        squares, products, stale_squares = self.smoothed_sums()
        return np.asarray(np.sqrt(np.maximum(squares - products**2 / stale_squares, 0) / stale_squares))

    def expected(self, round: int) -> NDArray[np.float64]:
        """The expected residual of every client, before the draw of a round, [clients]."""
        curve = self.ratios()[bin_of_age(np.arange(round + 1))]
        unseen = self.norms / self.received if self.received > 0 else 1.0
        return np.where(self.last > 0, self.norm * curve[round - self.last], unseen)

    def observe(self, updates: Updates, stored: ClientVectorStore, round: int) -> None:
        """Learns from the updates of a round, given the last ones before it."""
        for sums in (self.squares, self.products, self.stale_squares):
            sums *= _CURVE_DISCOUNT
        self.norms, self.received = _NORM_DISCOUNT * self.norms, _NORM_DISCOUNT * self.received
        norm, (product, stale_square) = updates.norms(), stored.of(updates.client).products(updates)
        finite = np.isfinite(norm)  # not so for updates of a model that diverged, which teach nothing
        known = np.flatnonzero((norm > 0) & (stale_square > 0) & finite & np.isfinite(stale_square + product))
        weight = 1 / norm[known] ** 2
        at = bin_of_age(round - self.last[updates.client[known]])
        np.add.at(self.squares, at, 1.0)
        np.add.at(self.products, at, weight * product[known])
        np.add.at(self.stale_squares, at, weight * stale_square[known])
        self.norms += float(norm[finite].sum())
        self.received += int(finite.sum())
        self.last[updates.client] = round
        self.norm[updates.client] = norm


def by_pair(expected: Sequence[NDArray[np.float64]], view: RoundView) -> NDArray[np.float64]:
    """The expected residual of every pair that can train in a round, [clients, tasks], given those of all clients for
    each task; 0 for the others."""
    table = np.stack(expected, axis=1)
    table[~view.able] = 0.0
    return table


def bin_of_age(age: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bin of each age, in rounds; 1 and 0 have the first."""
    octaves = np.log2(np.maximum(age, 1))
    return np.asarray(np.minimum(BINS_PER_OCTAVE * octaves, _BINS - 1).astype(np.int64))


NEIGHBOURS = np.exp(-np.abs(np.subtract.outer(np.arange(_BINS), np.arange(_BINS))) / _SPREAD)
"""How much each bin of ages learns from each other one, [bins, bins]."""
