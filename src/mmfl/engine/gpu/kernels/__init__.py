"""Triton kernels for layers whose weights differ from client to client.

They are faster than torch's operators where these spend their time on copies: convolutions that never store unfolded
inputs, group norm that keeps channels last. The modules here import Triton: ask `usable` first.
"""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

_FOUND = find_spec("triton") is not None
_MAX_NUMBERS = 1 << 31  # of one client that a 32-bit offset can address


def usable(*tensors: Tensor | None, size: int = 0) -> bool:
    """Whether the kernels can run on these tensors, whose first dimension is clients; `size` is the largest count of
    numbers that they will use for one client.

    They run on a GPU where Triton is installed; with TRITON_INTERPRET=1 in the environment, slowly, on a CPU.
    """
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    return (
        _FOUND
        and size < _MAX_NUMBERS
        and all(
            t.device.type == device and t.dtype == torch.float32 and 0 < t.numel() < _MAX_NUMBERS * len(t)
            for t in tensors
            if t is not None
        )
    )


def precision() -> str:
    """Triton's name for the precision that torch is set to for float32 matrices.

    Full precision on tensor cores is three products of ten bits each ("tf32x3"): the high parts of both factors, and
    each one's low part with the other's high part. What is left out is below the last bit.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    able = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    return "tf32x3" if able else "ieee"


def unit(stride: int) -> int:
    """The largest of 4, 2 and 1 that divides a stride: a kernel that knows it loads that many numbers at a time."""
    return next(size for size in (4, 2, 1) if stride % size == 0)


def strides(tensor: Tensor | None) -> tuple[int, int]:
    """The strides of a matrix, [clients, channels]; for a kernel that reads none they do not matter."""
    return (0, 0) if tensor is None else (tensor.stride(0), tensor.stride(1))
