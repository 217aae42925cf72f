"""CIFAR-10: 60,000 colour photographs of 32x32 pixels (Krizhevsky 2009), in its binary version."""

import math
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from mmfl.data import byte_images, files
from mmfl.data.dataset import Dataset
from mmfl.data.remote import RemoteFile
from mmfl.errors import UserError

ARCHIVE = RemoteFile(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size=170_052_171,
)
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
SHAPE = (3, 32, 32)


def cifar10(folder: str | Path | None = None) -> Dataset:
    """Photographs of objects and animals, ten classes: bytes [3, 32, 32], 50,000 for training and 10,000 for testing.

    Read from the binary batches in the folder, from the archive `cifar-10-binary.tar.gz` or from `cifar10.npz`;
    downloaded if missing (170 MB).
    """
    place = files.folder_of("cifar10", folder)
    unpacked = files.find_all(place, [(name, f"cifar-10-batches-bin/{name}") for name in BATCHES])
    if unpacked:
        return _dataset(place, {path: _read(path) for path in unpacked})
    npz = files.find(place, "cifar10.npz")
    if npz and not files.find(place, ARCHIVE.name):
        return byte_images.from_npz("cifar10", npz, SHAPE, 10)
    (archive,) = files.fetch("cifar10", place, [ARCHIVE])
    return _dataset(archive, _read_archive(archive))


def _read(path: Path) -> bytes:
    with files.reading("cifar10", path):
        return path.read_bytes()


def _read_archive(archive: Path) -> dict[Path, bytes]:
    """Reads the batches from the archive without unpacking it to disk."""
    found: dict[str, bytes] = {}
    with files.reading("cifar10", archive), tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name in BATCHES and (stream := tar.extractfile(member)):
                found[name] = stream.read()
    if missing := [name for name in BATCHES if name not in found]:
        raise UserError(f"data 'cifar10': {archive} has no {', '.join(missing)}.")
    return {archive / name: found[name] for name in BATCHES}


def _dataset(where: Path, batches: dict[Path, bytes]) -> Dataset:
    """The last batch is for testing. Every record is a label, then the red, green and blue pixels row by row."""
    size = 1 + math.prod(SHAPE)
    lengths = {path: len(content) for path, content in batches.items()}
    if len(set(lengths.values())) > 1 or any(length % size for length in lengths.values()):
        found = ", ".join(f"{path.name} has {length:,} bytes" for path, length in lengths.items())
        raise UserError(f"data 'cifar10' in {where}: {found}; expected the same multiple of {size:,} in each.")
    records = [np.frombuffer(content, np.uint8).reshape(-1, size) for content in batches.values()]
    train, test = np.concatenate(records[:-1]), records[-1]
    x, x_test = (part[:, 1:].reshape(-1, *SHAPE) for part in (train, test))
    return byte_images.dataset("cifar10", where, (x, train[:, 0], x_test, test[:, 0]), 10)
