"""Numbers on their way to a device."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], to: torch.device | Tensor) -> Tensor:
    """An array on a device, or as a tensor is (device and type), without waiting for what the device is doing.

    A copy from ordinary memory has left it when this returns; torch would wait nevertheless, if not told.
    """
    return torch.from_numpy(array).to(to, non_blocking=True)
