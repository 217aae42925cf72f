"""With how many bits matrices of float32 numbers are multiplied."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from mmfl.errors import UserError, nearest

Precision = Literal["float32", "tf32", "bfloat16"]
"""All of a number's bits; ten of its mantissa, which a GPU's tensor cores multiply several times as fast; or seven,
which newer CPUs multiply twice as fast."""


def check_precision(precision: str) -> Precision:
    """The precision of this name."""
    for known in get_args(Precision):
        if precision == known:
            return known  # type: ignore[no-any-return]
    raise UserError(f"unknown precision '{precision}': {nearest(precision, get_args(Precision))}")


@contextmanager
def multiplying(precision: Precision) -> Iterator[None]:
    """Matrix products and convolutions have this precision meanwhile. Sums and everything else are float32 always."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        with autocast_to(precision):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def autocast_to(precision: Precision) -> torch.autocast:
    """In this thread, operands are cast to bfloat16 if that is the precision. What is cast is not kept for the next
    use, because local steps change weights in place."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)


def to_float32(outputs: Tensor) -> Tensor:
    """Outputs as losses and metrics want them, in float32."""
    return outputs.float() if outputs.dtype == torch.bfloat16 else outputs
