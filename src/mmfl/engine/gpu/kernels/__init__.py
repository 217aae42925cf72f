"""Triton kernels for layers of which every client of a cohort has its own weights.

They take the place of compositions of torch's operators where those spend their time on copies: convolutions that never
write patches down, group norm that leaves channels last. Each module here needs Triton to be imported at all; ask
`usable` first. What a layer is and how it is batched is not decided here.
"""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

_FOUND = find_spec("triton") is not None
_REACH = 1 << 31  # elements of one client that a 32-bit offset tells apart


def usable(*tensors: Tensor | None, size: int = 0) -> bool:
    """Whether the kernels can work on these tensors, whose first dimension is clients, and `size` is how many numbers
    there will be for each of them at most.

    On a GPU where Triton is installed; with TRITON_INTERPRET=1 in the environment, slowly, on a CPU.
    """
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    return (
        _FOUND
        and size < _REACH
        and all(
            t.device.type == device and t.dtype == torch.float32 and 0 < t.numel() < _REACH * len(t)
            for t in tensors
            if t is not None
        )
    )


def precision() -> str:
    """How Triton is to multiply, as torch is told to multiply float32 matrices at this moment.

    With all bits, where there are tensor cores for it, as three products of ten bits each: of the high parts of both
    factors, and of each one's low part with the other's high one. What is left out is below the last bit.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    able = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    return "tf32x3" if able else "ieee"


def unit(stride: int) -> int:
    """The largest of 4, 2 and 1 that divides a stride: a kernel that knows it can load as many numbers at a time."""
    return next(size for size in (4, 2, 1) if stride % size == 0)
