"""Robust aggregations: the step stays near the honest updates, whatever a minority of the drawn clients sends.

They treat the drawn clients of a round as a sample of equals: one client, one vote. Neither the number of examples nor
the inverse probability counts, since the first is the client's own claim, and either could give a single client more
than half of the weight. Like `Average`, they therefore favour clients that are drawn often.

No rule can tell which of one or two updates is false: there the step is the mean, and a single attacker moves it as far
as it likes.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.base import AggregationRule
from mmfl.checks import check, check_positive, is_number
from mmfl.federation import RoundView
from mmfl.updates import Updates

_BLOCK_BYTES = 2**25  # of columns that are sorted or multiplied at a time
_MAX_ITERATIONS = 1000  # of Weiszfeld's algorithm, which costs [clients, clients] each
_TOLERANCE = 1e-9  # change of the largest weight at which it ends
_ROUNDING = 1e-9  # so that 0.2 of 10 clients are 2


class RobustRule(AggregationRule):
    """Subtracts a robust centre of the updates, to be defined by a subclass; no step where nobody trained."""

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """w - centre(G)."""
        return (weights - self.centre(updates) if len(updates) else weights), state

    def centre(self, updates: Updates) -> Tensor:
        """The centre of one or more updates, [parameters]."""
        raise TypeError(f"{type(self).__name__} does not say what the centre is.")


class TrimmedMean(RobustRule):
    """The coordinate-wise mean without the lowest and the highest values (Yin et al. 2018); `share` of the clients may
    attack, and as many values are left out at either end."""

    def __init__(self, share: float = 0.2):
        self.share = _share_of_attackers("trimmed-mean", share)

    def centre(self, updates: Updates) -> Tensor:
        """In each coordinate the mean of the n - 2k values in the middle, k = ceil(share n) at most (n - 1) / 2."""
        return _middle_mean(updates.flat, min(_attackers(self.share, len(updates)), (len(updates) - 1) // 2))


class Median(RobustRule):
    """The coordinate-wise median (Yin et al. 2018); fewer than half of the clients may attack."""

    def centre(self, updates: Updates) -> Tensor:
        """In each coordinate the value in the middle, or the mean of the two in the middle."""
        return _middle_mean(updates.flat, (len(updates) - 1) // 2)


class MultiKrum(RobustRule):
    """The mean of the updates that are closest to their neighbours (Blanchard et al. 2017); `share` of the clients may
    attack.

    Of n updates f = ceil(share n) are assumed to be false, but no more than Krum can bear, n >= 2f + 3. The score of an
    update is the sum of its squared distances to the n - f - 2 closest others. The n - f updates with the lowest scores
    are averaged, with any that tie with them, so that the order of the clients does not matter.
    """

    _name = "multi-krum"

    def __init__(self, share: float = 0.2):
        self.share = _share_of_attackers(self._name, share)

    def centre(self, updates: Updates) -> Tensor:
        """The mean of the updates with the lowest scores; of fewer than three, the mean of all."""
        n = len(updates)
        attackers = min(_attackers(self.share, n), max((n - 3) // 2, 0))
        distances = np.sort(squared_distances(gram_matrix(updates.flat)), axis=1)
        scores = distances[:, 1 : n - attackers - 1].sum(1)
        chosen = scores <= np.sort(scores)[self.count_averaged(n, attackers) - 1]
        return updates.combine(chosen / chosen.sum())

    def count_averaged(self, clients: int, attackers: int) -> int:
        """How many updates are averaged."""
        return clients - attackers


class Krum(MultiKrum):
    """The one update that is closest to its neighbours (Blanchard et al. 2017); `share` of the clients may attack.

    The score is that of Multi-Krum. Where several updates have the lowest score, such as the two closest of three, the
    centre is their mean.
    """

    _name = "krum"

    def count_averaged(self, clients: int, attackers: int) -> int:
        """A single one."""
        return 1


class GeometricMedian(RobustRule):
    """The point with the least sum of distances to the updates (RFA, Pillutla et al. 2022); fewer than half of the
    clients may attack.

    Distances below `smoothing` count as squares, which makes the sum smooth where the median is one of the updates.
    """

    def __init__(self, smoothing: float = 1e-6):
        check_positive("aggregation 'geometric-median'", "smoothing", smoothing)
        self.smoothing = smoothing

    def centre(self, updates: Updates) -> Tensor:
        """Weiszfeld's algorithm: the weighted mean, with weights 1 / max(distance to the last mean, smoothing).

        All means are combinations of the updates, so that distances follow from the updates' inner products, which are
        computed once. The algorithm begins with the mean of the majority that is closest to the update with the least
        sum of distances: this is near the honest updates, and the number of steps does not grow with the distance of
        the others.
        """
        gram = gram_matrix(updates.flat)
        weights = _closest_majority(squared_distances(gram))
        for _ in range(_MAX_ITERATIONS):
            products = gram @ weights
            squares = gram.diagonal() - 2 * products + weights @ products
            inverse = 1 / np.maximum(np.sqrt(np.maximum(squares, 0)), self.smoothing)
            before, weights = weights, inverse / inverse.sum()
            if np.abs(weights - before).max() < _TOLERANCE:
                break
        return updates.combine(weights)


def gram_matrix(flat: Tensor) -> NDArray[np.float64]:
    """The inner products of all pairs of rows, [rows, rows], in double precision: a block of columns at a time, so that
    no pair's difference nor a copy of the matrix is ever stored."""
    gram = torch.zeros(len(flat), len(flat), dtype=torch.float64, device=flat.device)
    for block in flat.split(_columns(flat, 8), dim=1):
        exact = block.double()
        gram.addmm_(exact, exact.T)
    return gram.cpu().numpy()


def squared_distances(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """||a - b||^2 of all pairs, given their inner products; symmetric to the bit, and 0 of a row to itself."""
    squares = gram.diagonal()
    distances = np.maximum(squares[:, None] + squares - (gram + gram.T), 0)
    np.fill_diagonal(distances, 0)
    return distances


def _closest_majority(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equal weights for more than half of the rows: those closest to the row with the least sum of distances."""
    distances = np.sqrt(squares)
    near = distances[distances.sum(1).argmin()]
    chosen = near <= np.sort(near)[len(near) // 2]
    return np.asarray(chosen / chosen.sum())


def _middle_mean(flat: Tensor, trimmed: int) -> Tensor:
    """The mean in each column without the `trimmed` lowest and highest values."""
    if trimmed == 0:
        return flat.mean(0)
    rows = slice(trimmed, len(flat) - trimmed)
    return torch.cat([_sort_columns(block)[rows].mean(0) for block in flat.split(_columns(flat, 4), dim=1)])


def _sort_columns(block: Tensor) -> Tensor:
    """Every column in ascending order; on a CPU by NumPy, which sorts ten times as fast as torch."""
    if block.device.type == "cpu":
        return torch.from_numpy(np.sort(block.numpy(), axis=0))
    return block.sort(0).values


def _columns(flat: Tensor, size: int) -> int:
    """How many columns to take at a time, with numbers of `size` bytes."""
    return max(_BLOCK_BYTES // (size * len(flat)), 1)


def _attackers(share: float, clients: int) -> int:
    """How many of the drawn clients are assumed to attack."""
    return math.ceil(share * clients - _ROUNDING)


def _share_of_attackers(rule: str, share: float) -> float:
    valid = is_number(share, 0, np.nextafter(0.5, 0))
    check(valid, f"aggregation '{rule}'", "share", share, "a number in [0, 0.5), the share of clients that may attack")
    return share
