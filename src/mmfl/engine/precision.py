"""With how many bits a GPU multiplies matrices of float32 numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from mmfl.errors import UserError, nearest

Precision = Literal["float32", "tf32"]
"""All of a number's bits, or ten of its mantissa, which tensor cores multiply several times as fast."""


def checked(precision: str) -> Precision:
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
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
