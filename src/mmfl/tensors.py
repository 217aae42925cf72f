"""Copies of arrays to a device, and the arrays inside a state."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], to: torch.device | Tensor) -> Tensor:
    """A copy of an array on a device, or with the device and type of a tensor, without waiting for the device.

    The array may be changed as soon as this returns: an asynchronous copy from pageable memory is staged first.
    """
    return torch.from_numpy(array).to(to, non_blocking=True)


def walk(state: Any) -> Iterator[Any]:
    """A state and everything in it: fields of dataclasses, items of lists, tuples and dictionaries."""
    yield state
    if is_dataclass(state):
        inside = [getattr(state, field.name) for field in fields(state)]
    elif isinstance(state, dict):
        inside = list(state.values())
    else:
        inside = list(state) if isinstance(state, list | tuple) else []
    for part in inside:
        yield from walk(part)
