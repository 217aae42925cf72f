"""Images of 28x28 pixels in idx files: MNIST (LeCun, Cortes, Burges), Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) and
EMNIST (Cohen, Afshar, Tapson, van Schaik 2017)."""

import math
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmfl.data import byte_images, files
from mmfl.data.dataset import Dataset
from mmfl.data.remote import RemoteFile, open_unpacked
from mmfl.errors import UserError, nearest

PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SIDE = 28


def _spellings(part: str) -> tuple[str, ...]:
    """The usual names of an idx file: compressed or not, with a dash or a dot before `idx`."""
    dotted = part.replace("-idx", ".idx")
    return f"{part}.gz", part, f"{dotted}.gz", dotted


def published_files(address: str, contents: Sequence[str | None]) -> list[RemoteFile]:
    """The four files of a data set at an address, with the sha256 of their uncompressed contents."""
    return [
        RemoteFile(f"{part}.gz", f"{address}/{part}.gz", content=content, also=_spellings(part)[1:])
        for part, content in zip(PARTS, contents, strict=True)
    ]


FILES = {
    "mnist": published_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",  # the authors' address no longer has them
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "fashion-mnist": published_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    "emnist": [
        RemoteFile(
            "gzip.zip",
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            sha256="fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
            size=561_753_746,
        )
    ],
}
_EMNIST_CLASSES = {"balanced": 47, "byclass": 62}
_STAND_IN = "femnist47"


def mnist(folder: str | Path | None = None) -> Dataset:
    """Handwritten digits, ten classes: bytes [1, 28, 28], 60,000 for training and 10,000 for testing.

    Read from idx files in the folder (compressed or not) or `mnist.npz`; downloaded if missing (12 MB).
    """
    return _load("mnist", "mnist.npz", folder)


def fashion_mnist(folder: str | Path | None = None) -> Dataset:
    """Articles of clothing, ten classes: bytes [1, 28, 28], 60,000 for training and 10,000 for testing.

    Read from idx files in the folder (compressed or not) or `fashion_mnist.npz`; downloaded if missing (31 MB).
    """
    return _load("fashion-mnist", "fashion_mnist.npz", folder)


def emnist(folder: str | Path | None = None, split: str = "balanced") -> Dataset:
    """Handwritten characters, turned upright: bytes [1, 28, 28].

    `split` is "balanced" (47 classes, 112,800 for training and 18,800 for testing) or "byclass" (62 classes, 697,932
    and 116,323). It reads the idx files in the folder, compressed or not, or `gzip.zip`, which is downloaded (562 MB)
    if it is missing. If the folder has `femnist47.npz`, this replaces the balanced split: the same kind of images and
    classes, but not EMNIST, which the name of the data set then says.
    """
    if split not in _EMNIST_CLASSES:
        raise UserError(f"data 'emnist': unknown split '{split}': {nearest(str(split), _EMNIST_CLASSES)}")
    name, classes = f"emnist-{split}", _EMNIST_CLASSES[split]
    place = files.folder_of("emnist", folder)
    parts = [f"{name}-{part.replace('t10k', 'test')}" for part in PARTS]
    choices = [_spellings(part) for part in parts]
    if unpacked := files.find_all(place, [(*names, *(f"gzip/{name}" for name in names)) for names in choices]):
        return _from_idx(name, place, unpacked, classes, transposed=True)
    stand_in = files.find(place, f"{_STAND_IN}.npz") if split == "balanced" else None
    if stand_in and not files.find(place, "gzip.zip"):
        return byte_images.from_npz(f"{_STAND_IN} (in place of emnist)", stand_in, (1, _SIDE, _SIDE), classes)
    (archive,) = files.fetch("emnist", place, FILES["emnist"])
    with files.reading("emnist", archive):
        members = [zipfile.Path(archive, f"gzip/{part}.gz") for part in parts]
    return _from_idx(name, archive, members, classes, transposed=True)


def _load(source: str, npz: str, folder: str | Path | None) -> Dataset:
    """From idx files in the folder, else from the `.npz` file, else downloaded."""
    place = files.folder_of(source, folder)
    path = files.find(place, npz)
    if path and not files.find_all(place, [file.names for file in FILES[source]]):
        return byte_images.from_npz(source, path, (1, _SIDE, _SIDE), 10)
    return _from_idx(source, place, files.fetch(source, place, FILES[source]), 10)


def _from_idx(
    name: str, where: Path, parts: Sequence[Path | zipfile.Path], classes: int, transposed: bool = False
) -> Dataset:
    """The data set in four idx files: training images and labels, test images and labels."""
    arrays = [_read_idx(name, part, *shape) for part, shape in zip(parts, [(_SIDE, _SIDE), ()] * 2, strict=True)]
    x, y, x_test, y_test = (np.swapaxes(array, -1, -2) if transposed and array.ndim > 1 else array for array in arrays)
    return byte_images.dataset(name, where, (x[:, None], y, x_test[:, None], y_test), classes)


def _read_idx(name: str, path: Path | zipfile.Path, *shape: int) -> NDArray[np.uint8]:
    """The entries of an idx file, each of `shape`: a magic number, the dimensions, then one byte per number."""
    with files.reading(name, path), open_unpacked(path) as stream:
        content = bytearray(stream.read())
    rows = int.from_bytes(content[4:8])
    header = struct.pack(f">4B{1 + len(shape)}I", 0, 0, 8, 1 + len(shape), rows, *shape)
    if not content.startswith(header):
        start = content[: len(header)].hex(" ") or "nothing"
        raise UserError(
            f"data '{name}': {path} starts with {start}; expected {header.hex(' ')}, for bytes in entries of {shape}."
        )
    entries, expected = np.frombuffer(content, np.uint8, offset=len(header)), rows * math.prod(shape)
    if len(entries) != expected:
        raise UserError(
            f"data '{name}': {path} is cut short or damaged: {len(entries):,} bytes for {rows:,} entries, which take "
            f"{expected:,}."
        )
    return entries.reshape(rows, *shape)
