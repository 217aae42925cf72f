"""Encodings of stored vectors: float32 as they are, float16, or quantised to a few bits a number."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.updates.quantiser import dequantise, quantise, quantised_bytes
from mmfl.updates.rows import batches


class Encoding:
    """How the numbers of a vector are stored: in float32, as they are."""

    dtype: torch.dtype = torch.float32

    def width(self, length: int) -> int:
        """How many numbers of `dtype` a vector of this length takes."""
        return length

    def encode(self, rows: Tensor) -> Tensor:
        """Rows [rows, length] of float32 as [rows, width] of `dtype`."""
        return rows.to(self.dtype)

    def decode(self, encoded: Tensor, length: int) -> Tensor:
        """The rows of float32 again, as precise as they are stored; the same bits however many there are."""
        return encoded.float()


class Half(Encoding):
    """In float16; what lies beyond its range becomes its largest value."""

    dtype = torch.float16

    def encode(self, rows: Tensor) -> Tensor:
        """Clamped and rounded."""
        largest = torch.finfo(self.dtype).max
        return rows.clamp(-largest, largest).to(self.dtype)


@dataclass(frozen=True)
class Quantised(Encoding):
    """In a few bits a number, as bytes, with a scale for each block of 256 numbers."""

    bits: int
    dtype = torch.uint8

    def width(self, length: int) -> int:
        """Bytes of a vector."""
        return quantised_bytes(length, self.bits)

    def encode(self, rows: Tensor) -> Tensor:
        """Some rows at a time, which is faster and takes less memory."""
        encoded = torch.empty(len(rows), self.width(rows.shape[1]), dtype=self.dtype, device=rows.device)
        for at in batches(len(rows), rows):
            encoded[at] = quantise(rows[at].float(), self.bits)
        return encoded

    def decode(self, encoded: Tensor, length: int) -> Tensor:
        """Some rows at a time."""
        rows = torch.empty(len(encoded), length, device=encoded.device)
        for at in batches(len(rows), rows):
            rows[at] = dequantise(encoded[at], self.bits, length)
        return rows


ENCODINGS: dict[str, Encoding] = {
    "float32": Encoding(),
    "float16": Half(),
    **{f"{bits}-bit": Quantised(bits) for bits in (8, 4, 3, 2)},
}
"""The encodings by the name of their precision."""
