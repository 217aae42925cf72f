"""Image data sets stored as bytes: a tensor [rows, channels, height, width] with one byte per pixel; labels from 0."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data import files
from mmfl.data.dataset import Dataset
from mmfl.errors import UserError


def dataset(name: str, where: Path, arrays: Iterable[NDArray[Any]], classes: int) -> Dataset:
    """The data set of training images, training labels, test images and test labels.

    Images are [rows, channels, height, width]; `where` is the file or folder named in errors.
    """
    x, y, x_test, y_test = arrays
    for part, images, labels in (("training", x, y), ("test", x_test, y_test)):
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
            raise UserError(
                f"data '{name}' in {where}: {len(images)} {part} images, but labels are {labels.dtype} of shape "
                f"{labels.shape}; expected a whole number for each."
            )
        if (wrong := (labels < 0) | (labels >= classes)).any():
            row = int(wrong.argmax())
            raise UserError(
                f"data '{name}' in {where}: label {labels[row]} at row {row} of the {part} part; "
                f"labels are 0 to {classes - 1}."
            )
    return Dataset(name, *_tensors(x, y), *_tensors(x_test, y_test))


def _tensors(images: NDArray[np.uint8], labels: NDArray[Any]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64))


def from_npz(name: str, path: Path, shape: tuple[int, int, int], classes: int) -> Dataset:
    """Images of `shape` [channels, height, width] from an `.npz` file.

    The file has uint8 arrays `x_train`, `x_test` of shape [rows, height, width] or, for colour images,
    [rows, height, width, channels], and their labels `y_train`, `y_test`.
    """
    channels, height, width = shape
    stored_shape = (height, width) if channels == 1 else (height, width, channels)
    x, y, x_test, y_test = files.arrays(name, path, "x_train", "y_train", "x_test", "y_test")
    for part, images in (("x_train", x), ("x_test", x_test)):
        if images.dtype != np.uint8 or images.shape[1:] != stored_shape:
            raise UserError(
                f"data '{name}': {part} in {path} is {images.dtype} of shape {images.shape}; "
                f"expected uint8 of shape (rows, {', '.join(map(str, stored_shape))})."
            )
    x, x_test = (np.moveaxis(images.reshape(-1, height, width, channels), 3, 1) for images in (x, x_test))
    return dataset(name, path, (x, y, x_test, y_test), classes)
