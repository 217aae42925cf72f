"""Folders of photographs: resized once, kept as bytes in a file of the cache folder, one copy of them in memory."""

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
_AT_ONCE = 1024


def shared(
    source: str, folder: Path, names: Sequence[str], size: tuple[int, int], train: Tensor, test: Tensor
) -> tuple[Tensor, Tensor]:
    """The images whose numbers, places in `names`, are in `train` and in `test`: bytes [images, 3, height, width].

    As long as somebody holds the tensors and no image has changed, the same call gives the very same tensors.
    """
    wanted = np.unique(torch.cat([train, test]).numpy())
    paths = [folder / names[number] for number in wanted]
    state = _digest(size, [_stamp(source, path) for path in paths])
    keys = [_digest(state, part.numpy().tobytes()).hex() for part in (train, test)]
    x, x_test = (_SHARED.get(key) for key in keys)
    if x is None or x_test is None:
        pixels = _resized(source, paths, size, state)
        x, x_test = (torch.from_numpy(pixels[np.searchsorted(wanted, part.numpy())]) for part in (train, test))
        _SHARED.update(zip(keys, (x, x_test), strict=True))
    return x, x_test


def clear() -> None:
    """Forgets which images are in memory; data sets that hold them keep them."""
    _SHARED.clear()


def _stamp(source: str, path: Path) -> tuple[str, int, int]:
    """What tells that a file has changed."""
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"data '{source}': image {path} cannot be read ({error.strerror}).") from None
    return str(path.absolute()), found.st_size, found.st_mtime_ns


def _digest(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def _resized(source: str, paths: Sequence[Path], size: tuple[int, int], state: bytes) -> NDArray[np.uint8]:
    """The images, read from the file in the cache folder; it is made anew where it does not fit their state.

    The file holds that state, the checksum of the pixels, and the pixels.
    """
    shape = (len(paths), 3, *size)
    which = _digest([str(path.absolute()) for path in paths]).hex()[:16]
    file = cache_folder() / source / f"{size[0]}x{size[1]}-{which}.images"
    if (kept := _kept(file, shape, state)) is not None:
        return kept
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as out:
            out.write(bytes(64))
            checksum = hashlib.sha256()
            for chunk in _read(source, paths, size):
                out.write(chunk)
                checksum.update(chunk)
            out.seek(0)
            out.write(state + checksum.digest())
        part.replace(file)
        return np.memmap(file, np.uint8, "r", 64, shape)
    except OSError:  # no room for it: the images are read again next time
        return np.frombuffer(b"".join(_read(source, paths, size)), np.uint8).reshape(shape)
    finally:
        with suppress(OSError):
            part.unlink()


def _kept(file: Path, shape: tuple[int, ...], state: bytes) -> NDArray[np.uint8] | None:
    """The pixels in a file, if it is whole and was made of images in this state."""
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


def _read(source: str, paths: Sequence[Path], size: tuple[int, int]) -> Iterator[bytes]:
    """The pixels of image after image, resized, some images at a time."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError(f"data '{source}': reading images needs Pillow (pip install pillow).") from None

    def read(path: Path) -> bytes:
        try:
            with Image.open(path) as image:
                small = image.convert("RGB").resize((size[1], size[0]), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"data '{source}': image {path} cannot be read ({error}).") from None
        return np.asarray(small).transpose(2, 0, 1).tobytes()

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), _AT_ONCE):
            yield b"".join(pool.map(read, paths[start : start + _AT_ONCE]))
