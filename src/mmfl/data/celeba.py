"""CelebA: photographs of celebrities with 40 binary attributes (Liu et al. 2015); each celebrity is an owner."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, check_whole, is_whole
from mmfl.data import files, leaf
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.data.pictures import shared_images
from mmfl.errors import UserError, nearest

_ORIGIN = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
_SUBFOLDERS = ("", "raw/", "data/raw/", "Anno/", "Eval/", "Img/")
_LABELS = {"1": 1, "-1": 0}


def celeba(
    attribute: str = "Smiling",
    folder: str | Path | None = None,
    size: Sequence[int] = (84, 84),
    least: int | None = None,
    unseen: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Images [3, height, width] as bytes, resized to `size`, with label 1 if the image has the attribute, else 0.

    The folder has `img_align_celeba/*.jpg`, `list_attr_celeba.txt` and `identity_CelebA.txt`. `test_share` of each
    celebrity's images is for testing or, with `unseen`, the images that `list_eval_partition.txt` sets aside for
    testing, which are of other celebrities. If the folder has LEAF's `train` and `test`, they divide the images.
    Celebrities with fewer than `least` images are left out. Data sets of several attributes with otherwise equal
    options share one tensor `x`.
    """
    valid = isinstance(size, Sequence) and len(size) == 2 and all(is_whole(length, 1) for length in size)
    check(valid, "data 'celeba'", "size", size, "(height, width)")
    place = files.folder_of("celeba", folder)
    pictures, table = _find(place, "img_align_celeba"), _find(place, "list_attr_celeba.txt")
    if pictures is None:
        raise files.not_found_error(
            "celeba", place, f"img_align_celeba, list_attr_celeba.txt, identity_CelebA.txt ({_ORIGIN})"
        )
    if found := leaf.split_files(place):
        names, indexed = _leaf_images(found, table, attribute, least, unseen)
    else:
        names, indexed = _official_images(place, table, attribute, least, unseen, test_share, seed)
    height, width = (int(length) for length in size)
    x, x_test = shared_images("celeba", pictures, names, (height, width), indexed.x, indexed.x_test)
    return replace(indexed, name=f"celeba, {attribute}", x=x, x_test=x_test)


def _leaf_images(
    split: tuple[list[Path], list[Path]], table: Path | None, attribute: str, least: int | None, unseen: bool
) -> tuple[list[str], Dataset]:
    """The names of LEAF's images, and a data set whose inputs are indices of these names.

    The labels are those of the table of attributes, or LEAF's if there is no table.
    """
    if table is None and attribute != "Smiling":
        where = split[0][0].parent.parent
        raise UserError(f"data 'celeba': {where} has labels for 'Smiling' only; others need list_attr_celeba.txt.")
    known = None if table is None else _attribute(table, attribute)
    names: list[str] = []

    def rows(x: list[Any], y: list[Any], where: str) -> leaf.Rows:
        places = np.arange(len(names), len(names) + len(x))
        names.extend(str(name) for name in x)
        labels = y if known is None else [known.get(str(name)) for name in x]
        if not all(label in (0, 1) for label in labels):
            lacking = "a label is not 0 or 1" if known is None else f"{table} lacks one of the images"
            raise UserError(f"{where}: {lacking}.")
        return places, np.array(labels, dtype=np.int64)

    train, test = (leaf.rows_by_user("celeba", part, rows) for part in split)
    return names, leaf.to_dataset("celeba", train, test, least, unseen)


def _official_images(
    place: Path, table: Path | None, attribute: str, least: int | None, unseen: bool, test_share: float, seed: int
) -> tuple[list[str], Dataset]:
    """Names of all images in the table of attributes, and a data set whose inputs are places among them."""
    if table is None:
        raise files.not_found_error("celeba", place, "list_attr_celeba.txt")
    label = _attribute(table, attribute)
    names = list(label)
    x, y = np.arange(len(names)), np.array(list(label.values()))
    owner = _numbers(place, "identity_CelebA.txt", names)
    if not unseen:
        kept = _rows_of_frequent_owners(owner, least)
        return names, from_arrays(x[kept], y[kept], owner[kept], test_share=test_share, name="celeba", seed=seed)
    part = _numbers(place, "list_eval_partition.txt", names)
    train, test = np.flatnonzero(part == 0), np.flatnonzero(part == 2)
    train = train[_rows_of_frequent_owners(owner[train], least)]
    return names, from_arrays(x[train], y[train], owner[train], test=(x[test], y[test]), name="celeba")


def _rows_of_frequent_owners(owner: NDArray[np.int64], least: int | None) -> NDArray[np.int64]:
    """The rows whose owner has at least `least` of them."""
    if least is not None:
        check_whole("data 'celeba'", "least", least)
    _, inverse, counts = np.unique(owner, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[inverse] >= (least or 1))


def _find(place: Path, name: str) -> Path | None:
    return files.find(place, *(f"{part}{name}" for part in _SUBFOLDERS))


def _lines(path: Path) -> list[str]:
    with files.reading("celeba", path):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _attribute(path: Path, attribute: str) -> dict[str, int]:
    """The label of each image, from a file with the number of images, the attributes' names, and a line per image."""
    lines = _lines(path)
    where = f"data 'celeba': {path}"
    if len(lines) < 3 or not lines[0].strip().isdecimal():
        raise UserError(f"{where} does not begin with the number of images and a line of attributes.")
    attributes = lines[1].split()
    if attribute not in attributes:
        raise UserError(f"data 'celeba': unknown attribute '{attribute}': {nearest(attribute, attributes)}")
    column = attributes.index(attribute)
    labels: dict[str, int] = {}
    for number, line in enumerate(lines[2:], 3):
        name, *values = line.split() or [""]
        if len(values) != len(attributes):
            raise UserError(f"{where}, line {number}: {len(values)} values for {len(attributes)} attributes.")
        if values[column] not in _LABELS:
            raise UserError(f"{where}, line {number}: {attribute} is '{values[column]}'; expected 1 or -1.")
        labels[name] = _LABELS[values[column]]
    if len(labels) != int(lines[0]):
        raise UserError(f"{where} has {len(labels)} images, but says {int(lines[0])}: cut short?")
    return labels


def _numbers(place: Path, file: str, names: Sequence[str]) -> NDArray[np.int64]:
    """The number of each named image, from a file with a line `image number` for each."""
    path = _find(place, file)
    if path is None:
        raise files.not_found_error("celeba", place, file)
    numbers: dict[str, int] = {}
    for at, line in enumerate(_lines(path), 1):
        fields = line.split()
        if len(fields) != 2 or not fields[1].isdecimal():
            raise UserError(f"data 'celeba': {path}, line {at} is '{line}'; expected an image and a number.")
        numbers[fields[0]] = int(fields[1])
    lacking = next((name for name in names if name not in numbers), None)
    if lacking is not None:
        raise UserError(f"data 'celeba': {path} has no line for image '{lacking}'.")
    return np.array([numbers[name] for name in names], dtype=np.int64)
