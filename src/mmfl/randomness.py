"""Addressed random numbers: every random number is a pure function of an address.

An address is a tuple such as (seed, purpose, round, task, client). The same address always gives the same number, on
any device, in any order and with any number of processes. No generator state is consumed, so a resumed run sees the
same random numbers as an uninterrupted one, and a client the same numbers whichever other clients are drawn.

The generator is counter-based: the parts of the address pass one after another through the SplitMix64 finaliser, a
bijection on 64 bits that passes the usual statistical tests. It is integer arithmetic on tensors, so a million
addresses cost a few array operations.
"""

import math
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmfl.checks import check_whole


class Purpose(IntEnum):
    """What a random number is used for. It is part of every address, so that two uses never share numbers."""

    MODEL = 1
    DATA = 2
    PARTITION = 3
    CAPACITY = 4
    MISSING = 5
    AVAILABILITY = 6
    CLIENTS = 7
    TASKS = 8
    BATCHES = 9
    DROPOUT = 10
    PARTS = 11
    POINTS = 12
    ARRIVALS = 13
    NOISE = 14
    AUGMENTATION = 15
    ATTACK = 16
    DEVICES = 17
    DURATION = 18
    ROUTE = 19
    CENTRAL_NOISE = 20


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_BLOCK = 2**15  # clients whose numbers are made together


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift of 64-bit words held in int64."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mix(x: int | Tensor) -> int | Tensor:
    """The SplitMix64 finaliser of a tensor, which it changes, or of a single number, with the same bits."""
    if isinstance(x, Tensor):
        x.bitwise_xor_(_shift(x, 30)).mul_(_FIRST)
        x.bitwise_xor_(_shift(x, 27)).mul_(_SECOND)
        return x.bitwise_xor_(_shift(x, 31))
    x %= 1 << 64
    x = (x ^ (x >> 30)) * _FIRST % (1 << 64)
    x = (x ^ (x >> 27)) * _SECOND % (1 << 64)
    x ^= x >> 31
    return x - (1 << 64) if x >> 63 else x


def bits(*address: int | Tensor) -> Tensor:
    """64 random bits (as int64) for each address; integer tensors in the address broadcast.

    >>> bool((bits(0, 1, torch.arange(3)) == bits(0, 1, torch.arange(3))).all())
    True
    """
    state: int | Tensor = 0
    for part in address:
        state = _mix((state ^ (part.long() if isinstance(part, Tensor) else int(part))) + _GOLDEN)
    return state if isinstance(state, Tensor) else torch.tensor(state)


def uniform(*address: int | Tensor) -> Tensor:
    """Uniform numbers in [0, 1), float64, one for each address."""
    return _shift(bits(*address), 11).double() * 2.0**-53


def normal(words: Tensor) -> Tensor:
    """Standard normal numbers (float64), each from 64 random bits: one for the sign, 53 for the magnitude."""
    lower = (((words >> 11) & (2**53 - 1)).double() + 0.5) * 2.0**-54
    numbers: Tensor = torch.special.ndtri(lower) * (1 - 2 * (words & 1))
    return numbers


def clients_uniform(clients: int, *address: int, columns: int = 1) -> np.ndarray:
    """Uniform numbers in [0, 1), [clients, columns]: row i depends on client i alone."""
    return uniform(*address, torch.arange(clients)[:, None], torch.arange(columns)[None, :]).numpy()


def clients_below(
    bound: float, clients: int, *address: int, columns: int = 1
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Where `clients_uniform` is below a bound: the clients and their columns, in order.

    Numbers are compared as they come, in blocks that stay in the processor's cache, and not one is stored.

    >>> client, column = clients_below(0.5, 100, 7, columns=2)
    >>> bool((np.stack([client, column], 1) == np.argwhere(clients_uniform(100, 7, columns=2) < 0.5)).all())
    True
    """
    found, column = [], torch.arange(columns)
    whole = math.ceil(min(max(bound, 0.0), 1.0) * 2.0**53)
    for begin in range(0, clients, _BLOCK):
        client = torch.arange(begin, min(begin + _BLOCK, clients))[:, None]
        found.append((_shift(bits(*address, client, column), 11) < whole).nonzero().add_(torch.tensor([begin, 0])))
    where = torch.cat(found) if found else torch.zeros(0, 2, dtype=torch.int64)
    return where[:, 0].numpy(), where[:, 1].numpy()


def generator(*address: int) -> np.random.Generator:
    """A numpy generator seeded by the address, for choices that are made once (data, partitions).

    The address begins with the user's seed.
    """
    check_whole("", "seed", address[0], 0)
    return np.random.Generator(np.random.Philox(key=int(bits(*address)) % 2**64))
