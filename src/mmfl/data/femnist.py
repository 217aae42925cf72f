"""FEMNIST: handwritten digits and letters, 62 classes, by writer (NIST's special database 19, prepared by LEAF)."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.data import files, leaf
from mmfl.data.dataset import Dataset
from mmfl.errors import UserError

_SIDE, _CLASSES = 28, 62


def femnist(folder: str | Path | None = None, unseen: bool = False, least: int | None = None) -> Dataset:
    """Images [1, 28, 28] as bytes, black on white; labels 0-9 digits, 10-35 capitals, 36-61 small letters.

    Each writer is an owner with its own test images. The folder has LEAF's `train` and `test`, or `femnist62.npz`. With
    `unseen` there is one shared test set, of writers who have no training images; it is always shared if LEAF divided
    the data by user. Writers with fewer than `least` images are left out.
    """
    place = files.folder_of("femnist", folder)
    if path := files.find(place, "femnist62.npz"):
        (writers,) = files.arrays("femnist", path, "writers")
        train, own, unseen_writers = (_by_writer(path, part, writers) for part in ("train", "test", "heldout"))
        return leaf.to_dataset("femnist", train, unseen_writers if unseen else own, least)
    if found := leaf.split_files(place):
        train, test = (leaf.rows_by_user("femnist", part, _images) for part in found)
        return leaf.to_dataset("femnist", train, test, least, unseen)
    raise files.not_found_error(
        "femnist", place, "the folders train and test of LEAF's FEMNIST (https://leaf.cmu.edu), or femnist62.npz"
    )


def _by_writer(path: Path, part: str, writers: NDArray[np.str_]) -> dict[str, leaf.Rows]:
    names = tuple(f"{kind}_{part}" for kind in ("x", "y", "writer"))
    x, y, writer = files.arrays("femnist", path, *names)
    if x.shape != (len(y), _SIDE, _SIDE) or x.dtype != np.uint8 or writer.shape != y.shape:
        raise UserError(
            f"data 'femnist': {path}: {names[0]} is {x.dtype} {x.shape}, {names[1]} {y.shape}, {names[2]} "
            f"{writer.shape}; expected bytes (images, {_SIDE}, {_SIDE}), (images,), (images,)."
        )
    if not (valid := np.isin(writer, np.arange(len(writers)))).all():
        found = f"{writer[~valid][0]} at row {valid.argmin()}"
        raise UserError(f"data 'femnist': {path}: {names[2]} is {found}; expected writers 0 to {len(writers) - 1}.")
    rows = {number: np.flatnonzero(writer == number) for number in np.unique(writer)}
    return {
        str(writers[number]): (x[own_rows, None], _labels(y[own_rows], str(path))) for number, own_rows in rows.items()
    }


def _images(x: list[Any], y: list[Any], where: str) -> leaf.Rows:
    try:
        pixels = np.array(x, dtype=np.float32).reshape(len(x), _SIDE * _SIDE)
    except (TypeError, ValueError):
        raise UserError(f"{where}: an image in x is not {_SIDE * _SIDE} numbers.") from None
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise UserError(f"{where}: a pixel in x is not a number in [0, 1].")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE), _labels(y, where)


def _labels(y: ArrayLike, where: str) -> NDArray[np.int64]:
    labels = np.asarray(y)
    if labels.size and (labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= _CLASSES):
        raise UserError(f"{where}: a label is not a class number from 0 to {_CLASSES - 1}.")
    return labels.astype(np.int64)
