"""Folders of images: a folder for each class."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mmfl.checks import check, is_whole
from mmfl.data.adapters import read_items
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


def image_folder(
    folder: str | Path,
    size: int | Sequence[int] | None = None,
    grey: bool = False,
    lazy: bool = True,
    owner: ArrayLike | None = None,
    *,
    test_share: float = 0.2,
    name: str | None = None,
    seed: int = 0,
) -> Dataset:
    """Images in `folder/CLASS/...`, classes numbered in the order of their names.

    If the folder has `train` and `test`, the classes are in each of these; otherwise `test_share` of the images (of
    each owner) is set aside. `size` (one number, or height and width) resizes images, which must all have the same size
    otherwise. With `lazy` an image is decoded whenever it is needed; else all are, once. `owner` has one entry per
    training image, in the order of classes and of paths.
    """
    root, name = Path(folder), name or Path(folder).name
    where = f"data '{name}'"
    shape = (size, size) if isinstance(size, int) else size
    valid = shape is None or (len(shape) == 2 and all(is_whole(side, 1) for side in shape))
    check(valid, where, "size", size, "a whole number of at least 1, or height and width")
    divided = (root / "train").is_dir() and (root / "test").is_dir()
    train = root / "train" if divided else root
    classes = sorted(path.name for path in _list(train, where) if path.is_dir())
    if not classes:
        raise UserError(f"{where}: '{train}' has no folders; expected one for each class.")

    def decode(path: Path) -> "Image":
        from PIL import Image  # only here, so that a start without pictures does not wait for it

        with Image.open(path) as file:
            image = file.convert("L" if grey else "RGB")
        return image if shape is None else image.resize((shape[1], shape[0]))

    def load(part: Path) -> tuple[Any, Any]:
        paths = [sorted(p for p in (part / c).rglob("*") if p.suffix.lower() in _SUFFIXES) for c in classes]
        if not any(paths):
            raise UserError(f"{where}: no images in the folders of '{part}'; expected files such as .png or .jpg.")
        labels = np.repeat(np.arange(len(classes)), [len(each) for each in paths])
        return read_items([*chain(*paths)], decode, f"{where}, image", lazy), labels

    test = load(root / "test") if divided else None
    return from_arrays(*load(train), owner, test=test, test_share=test_share, name=name, seed=seed)


def _list(folder: Path, where: str) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UserError(f"{where}: folder '{folder}' cannot be read: {error.strerror}.") from None
