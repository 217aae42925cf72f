"""The idx format of MNIST and similar data sets: a magic number, the dimensions, then one byte per entry."""

import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmfl.data import byte_images, files
from mmfl.data.dataset import Dataset
from mmfl.data.remote import open_unpacked
from mmfl.errors import UserError

PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SIDE = 28

_CHUNK = 2**20


def spellings(part: str) -> tuple[str, ...]:
    """The usual names of such a file: compressed or not, with a dash or a dot before `idx`."""
    dotted = part.replace("-idx", ".idx")
    return f"{part}.gz", part, f"{dotted}.gz", dotted


def dataset(
    name: str, where: Path, parts: Sequence[Path | zipfile.Path], classes: int, transposed: bool = False
) -> Dataset:
    """The data set in four idx files: training images and labels, test images and labels."""
    x, y, x_test, y_test = (read(name, part, *shape) for part, shape in zip(parts, [(SIDE, SIDE), ()] * 2, strict=True))
    if transposed:
        turn_upright(x)
        turn_upright(x_test)
    return byte_images.dataset(name, where, (x[:, None], y, x_test[:, None], y_test), classes)


def read(name: str, path: Path | zipfile.Path, *shape: int) -> NDArray[np.uint8]:
    """The entries of an idx file of bytes, each of `shape`; header and length of the file must match."""
    where = f"data '{name}': {path}"
    magic = bytes((0, 0, 8, 1 + len(shape)))
    with files.reading(name, path), open_unpacked(path) as stream:
        start = stream.read(4)
        if start != magic:
            raise UserError(
                f"{where} starts with {start.hex(' ') or 'nothing'}, not with {magic.hex(' ')} as expected of it."
            )
        header = stream.read(4 * (1 + len(shape)))
        if len(header) < 4 * (1 + len(shape)):
            raise UserError(f"{where} was cut short: it ends within its header.")
        rows, *header_shape = struct.unpack(f">{1 + len(shape)}I", header)
        if tuple(header_shape) != shape:
            raise UserError(f"{where} has entries of shape {tuple(header_shape)}; expected {shape}.")
        try:
            entries = np.empty((rows, *shape), np.uint8)
        except MemoryError:
            raise UserError(
                f"{where} states {rows:,} entries, more than memory holds: its header is damaged."
            ) from None
        flat, filled = entries.reshape(-1), 0
        while filled < flat.size and (piece := stream.read(min(_CHUNK, flat.size - filled))):
            flat[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        if filled < flat.size:
            raise UserError(f"{where} was cut short: {filled:,} bytes for {rows:,} entries, which take {flat.size:,}.")
        if stream.read(1):
            raise UserError(f"{where} goes on after the {rows:,} entries its header states.")
    return entries


def turn_upright(images: NDArray[np.uint8]) -> None:
    """Swaps rows and columns in place, one block at a time, to avoid a second copy of the images."""
    for start in range(0, len(images), 4096):
        block = images[start : start + 4096]
        block[:] = block.transpose(0, 2, 1).copy()
