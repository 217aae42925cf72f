"""Dropout of every kind, given an addressed source of what is kept."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmfl.randomness import bits

KeepMask = Callable[[Sequence[int], torch.device, float], Tensor]
"""From a shape, a device and the probability to drop: which elements are kept."""

_LANES, _BITS = 4, 16  # random numbers in a word of 64 bits, and the bits of each
_VALUES, _TOP = 1 << _BITS, 64 - _BITS  # the values of each, and by how much the lowest is shifted to be the highest
_SELU_LIMIT = 1.7580993408473766  # SELU of minus infinity, with the opposite sign


def round_probability(p: float) -> float:
    """The probability that `draw_keep_mask` drops with: p, rounded to a multiple of 1 / 65536. Only p = 0 becomes 0,
    and only p = 1 becomes 1."""
    return p if p in (0, 1) else min(max(round(p * _VALUES), 1), _VALUES - 1) / _VALUES


def draw_keep_mask(shape: Sequence[int], device: torch.device, p: float, *address: int | Tensor) -> Tensor:
    """Which elements of a tensor dropout keeps, each with probability 1 - p.

    An element's random number depends on the address and on its coordinates alone, not on the shape: padding a batch,
    along whichever dimension, changes nothing for the others. Four neighbours share a word of random bits.
    """
    *outer, last = shape or [1]
    sizes = [*outer, -(-last // _LANES)]
    ranges = [torch.arange(size, device=device) for size in sizes]
    coordinates = [each.view(-1, *(1 for _ in sizes[n + 1 :])) for n, each in enumerate(ranges)]
    words, least = bits(*address, *coordinates), (round(round_probability(p) * _VALUES) - _VALUES // 2) << _TOP
    kept = torch.stack([words << _TOP - n * _BITS >= least for n in range(_LANES)], -1)
    return kept.flatten(-2)[..., :last].reshape(shape)


def drop(input: Tensor, kept: Tensor, p: float) -> Tensor:
    """Zero where not kept, the rest larger by as much as makes up for it on average."""
    return input * kept * (1 / (1 - round_probability(p)))


def drop_alpha(input: Tensor, kept: Tensor, p: float) -> Tensor:
    """SELU's limit where not kept, and a scale and shift that preserve a mean of zero and a variance of one
    (Klambauer et al. 2017)."""
    p = round_probability(p)
    scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU_LIMIT**2))
    return scale * (torch.where(kept, input, -_SELU_LIMIT) + p * _SELU_LIMIT)
