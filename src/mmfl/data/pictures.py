"""Folders of photographs: resized once, cached as bytes in a file, and shared in memory."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.files import cache_folder
from mmfl.errors import UserError

_SHARED: WeakValueDictionary[str, Tensor] = WeakValueDictionary()
_IMAGES_AT_ONCE = 1024


def shared_images(
    source: str, folder: Path, names: Sequence[str], size: tuple[int, int], train: Tensor, test: Tensor
) -> tuple[Tensor, Tensor]:
    """The training and test images as bytes [images, 3, height, width]; `train` and `test` are indices into `names`.

    As long as the tensors are in use and no image has changed, the same call returns the same tensors.
    """
    needed = np.unique(torch.cat([train, test]).numpy())
    paths = [folder / names[number] for number in needed]
    state = _digest(size, [_stamp(source, path) for path in paths])
    keys = [_digest(state, part.numpy().tobytes()).hex() for part in (train, test)]
    x, x_test = (_SHARED.get(key) for key in keys)
    if x is None or x_test is None:
        pixels = _resize_cached(source, paths, size, state)
        x, x_test = (torch.from_numpy(pixels[np.searchsorted(needed, part.numpy())]) for part in (train, test))
        _SHARED.update(zip(keys, (x, x_test), strict=True))
    return x, x_test


def _stamp(source: str, path: Path) -> tuple[str, int, int]:
    """Path, size and time of a file, which show whether it has changed."""
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"data '{source}': image {path} cannot be read ({error.strerror}).") from None
    return str(path.absolute()), found.st_size, found.st_mtime_ns


def _digest(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def _resize_cached(source: str, paths: Sequence[Path], size: tuple[int, int], state: bytes) -> NDArray[np.uint8]:
    """The resized images, read from a file in the cache folder, which is written again if the images have changed.

    The file contains a digest of the images' state, the checksum of the pixels, and the pixels.
    """
    shape = (len(paths), 3, *size)
    which = _digest([str(path.absolute()) for path in paths]).hex()[:16]
    file = cache_folder() / source / f"{size[0]}x{size[1]}-{which}.images"
    if (cached := _read_cache(file, shape, state)) is not None:
        return cached
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as out:
            out.write(bytes(64))
            checksum = hashlib.sha256()
            for chunk in _read_images(source, paths, size):
                out.write(chunk)
                checksum.update(chunk)
            out.seek(0)
            out.write(state + checksum.digest())
        part.replace(file)
        return np.memmap(file, np.uint8, "r", 64, shape)
    except OSError:  # cannot be cached: the images are read again next time
        return np.frombuffer(b"".join(_read_images(source, paths, size)), np.uint8).reshape(shape)
    finally:
        with suppress(OSError):
            part.unlink()


def _read_cache(file: Path, shape: tuple[int, ...], state: bytes) -> NDArray[np.uint8] | None:
    """The pixels in a cache file, if it is intact and the images have not changed since."""
    try:
        with file.open("rb") as content:
            if content.read(32) != state:
                return None
            checksum = content.read(32)
            if hashlib.file_digest(content, "sha256").digest() != checksum:
                return None
        return np.memmap(file, np.uint8, "r", 64, shape)
    except (OSError, ValueError):
        return None


def _read_images(source: str, paths: Sequence[Path], size: tuple[int, int]) -> Iterator[bytes]:
    """The pixels of the resized images, several images at a time."""
    from PIL import Image

    def read(path: Path) -> bytes:
        try:
            with Image.open(path) as image:
                small = image.convert("RGB").resize((size[1], size[0]), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"data '{source}': image {path} cannot be read ({error}).") from None
        return np.asarray(small).transpose(2, 0, 1).tobytes()

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), _IMAGES_AT_ONCE):
            yield b"".join(pool.map(read, paths[start : start + _IMAGES_AT_ONCE]))
