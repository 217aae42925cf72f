"""LEAF's JSON format: examples by user, as written by the scripts of the LEAF benchmark (Caldas et al. 2018).

A data set is a folder with `train/*.json` and `test/*.json`; each file has `users`, `num_samples` and, for every user,
the lists `x` and `y` under `user_data`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check_whole
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.errors import UserError

Rows = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and targets of one user."""

Convert = Callable[[list[Any], list[Any], str], Rows]
"""Converts a user's lists `x` and `y`; the text names the file and the user in error messages."""


def split_files(folder: Path) -> tuple[list[Path], list[Path]] | None:
    """LEAF's training and test files in the folder or its subfolder `data`; None if there are none."""
    for base in (folder, folder / "data"):
        train, test = (sorted((base / part).glob("*.json")) for part in ("train", "test"))
        if train and test:
            return train, test
    return None


def rows_by_user(source: str, files: Sequence[Path], convert: Convert) -> dict[str, Rows]:
    """Each user's rows, converted to arrays; the files are read one at a time."""
    rows: dict[str, Rows] = {}
    for file in files:
        for user, x, y, count in _users(f"data '{source}': {file}", file):
            where = f"data '{source}': {file}, user '{user}'"
            if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y) == count):
                sizes = (len(part) if isinstance(part, list) else f"a {type(part).__name__}" for part in (x, y))
                raise UserError("{}: x has {}, y has {}, 'num_samples' is {}.".format(where, *sizes, count))
            if user in rows:
                raise UserError(f"{where} again; expected all examples of a user in one place.")
            rows[user] = convert(x, y, where)
    return rows


def _users(where: str, file: Path) -> list[tuple[str, Any, Any, Any]]:
    """The users of a file: name, x, y and number of examples."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{where} is not LEAF's JSON ({error}).") from None
    try:
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        if not isinstance(counts, list) or len(counts) != len(users):
            raise UserError(f"{where}: 'num_samples' does not have one number for each of {len(users)} users.")
        return [(str(u), data[u]["x"], data[u]["y"], count) for u, count in zip(users, counts, strict=True)]
    except (KeyError, TypeError) as error:
        problem = f"has no {error}" if isinstance(error, KeyError) else "is not an object of objects"
        raise UserError(f"{where} {problem}; expected 'users', 'num_samples', 'user_data' with 'x', 'y'.") from None


def to_dataset(
    name: str, train: Mapping[str, Rows], test: Mapping[str, Rows], least: int | None = None, unseen: bool = False
) -> Dataset:
    """One data set of all users' rows; each user is an owner.

    Users with fewer than `least` rows (training and test together) are left out. Test rows belong to their users,
    unless no user of the test set has training rows: then the test set is shared. `unseen` requires that.
    """
    if unseen and not train.keys().isdisjoint(test):
        raise UserError(f"data '{name}': 'test' has the same owners as 'train'; LEAF separates them with -t user.")
    if least is not None:
        check_whole(f"data '{name}'", "least", least)
    sizes = {user: len(y) + (len(test[user][1]) if user in test else 0) for user, (_, y) in train.items() if len(y)}
    kept = [user for user, size in sizes.items() if size >= (least or 1)]
    if not kept:
        raise UserError(f"data '{name}': no owner has {least or 1} examples (most: {max(sizes.values(), default=0)}).")
    x, y, owner = _concatenate(train, kept)
    if train.keys().isdisjoint(test):
        return from_arrays(x, y, owner, test=_concatenate(test, list(test))[:2], name=name)
    dropped = sizes.keys() - set(kept)
    return from_arrays(x, y, owner, test=_concatenate(test, [u for u in test if u not in dropped]), name=name)


def _concatenate(rows: Mapping[str, Rows], users: list[str]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.str_]]:
    parts = [rows[user] for user in users]
    owner = np.repeat(np.array(users), [len(y) for _, y in parts])
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), owner
