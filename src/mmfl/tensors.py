"""Copies of arrays to a device."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], to: torch.device | Tensor) -> Tensor:
    """A copy of an array on a device, or with the device and type of a tensor, without waiting for the device.

    The array may be changed as soon as this returns: an asynchronous copy from pageable memory is staged first.
    """
    return torch.from_numpy(array).to(to, non_blocking=True)
