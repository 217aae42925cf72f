"""The precision in which matrices are multiplied."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast, get_args

import torch

from mmfl.data.structure import Structure, map_tensors
from mmfl.errors import UserError, nearest

Precision = Literal["float32", "tf32", "bfloat16"]
"""All bits of the factors; ten bits of their mantissas, which a GPU's tensor cores multiply several times as fast; or
seven bits, which newer CPUs multiply twice as fast."""


def check_precision(precision: str) -> Precision:
    """The precision of this name."""
    if precision not in get_args(Precision):
        raise UserError(f"unknown precision '{precision}': {nearest(precision, get_args(Precision))}")
    return cast(Precision, precision)


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Sets the precision of matrix products and convolutions. Sums and everything else stay float32."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        with autocast(precision):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def autocast(precision: Precision) -> torch.autocast:
    """Casts operands to bfloat16 in this thread, if that is the precision. Casts are not cached, because local steps
    change weights in place."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)


def to_float32(outputs: Structure) -> Structure:
    """Outputs in float32, as losses and metrics want them."""
    return map_tensors(lambda leaf: leaf.float() if leaf.dtype == torch.bfloat16 else leaf, outputs)
