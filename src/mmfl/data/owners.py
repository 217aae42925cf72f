"""Who owns which row: whole numbers or names, as a user gives them, checked row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import is_whole
from mmfl.errors import UserError

_MOST = 2**63  # whole numbers are int64


def read_owners(owner: ArrayLike, where: str) -> NDArray[Any]:
    """The owner of every row, as int64 numbers or as text; what is neither is refused with its row.

    >>> read_owners([7.0, 3.0], "data 'mine'")
    array([7, 3])
    """
    # An array of a list would turn numbers among names, and missing ones, into names.
    given = np.array(owner, dtype=object) if isinstance(owner, Sequence) else np.asarray(owner)
    if given.ndim != 1:
        raise UserError(f"{where}: owner has shape {given.shape}; expected one entry per example.")
    if given.dtype.kind in "UT" or (given.dtype.kind == "O" and all(isinstance(name, str) for name in given)):
        names = given.astype(str)
        _refuse(where, given, names == "", "a name")
        return names
    if given.dtype.kind == "O":
        named = np.array([isinstance(value, str) for value in given], dtype=bool)
        if named.any() and not (wrong := ~named & ~_whole_rows(given)).any():
            name, number = given[np.argmax(named)], given[np.argmin(named)]
            raise UserError(f"{where}: owners are names ({name!r}) and numbers ({number!r}); expected one kind.")
        _refuse(where, given, wrong if named.any() else ~_whole_rows(given), "a whole number from 0, or a name")
    else:
        _refuse(where, given, ~_whole_rows(given), "a whole number from 0, or a name")
    return given.astype(np.int64)


def place_owners(names: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """The places of owners among the sorted `names`, -1 for one that is not there."""
    if is_text(names) != is_text(given):
        return np.full(len(given), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(names, given), len(names) - 1)
    return np.where(names[place] == given, place, -1)


def is_text(names: NDArray[Any]) -> bool:
    """Whether owners are known by names rather than numbers."""
    return names.dtype.kind == "U"


def _whole_rows(given: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries are whole numbers from 0; 3.0 is one."""
    if given.dtype.kind == "O":
        return np.array([_is_whole(value) for value in given], dtype=bool)
    if given.dtype.kind not in "iuf":
        return np.zeros(len(given), dtype=bool)
    with np.errstate(invalid="ignore"):
        whole: NDArray[np.bool_] = (given >= 0) & (given < _MOST) & (given == np.floor(given))
    return whole


def _is_whole(value: object) -> bool:
    if isinstance(value, float | np.floating):
        return bool(0 <= value < _MOST) and float(value).is_integer()
    return is_whole(value, 0) and int(value) < _MOST  # type: ignore[call-overload]


def _refuse(where: str, given: NDArray[Any], wrong: NDArray[np.bool_], expected: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        value = given[row].item() if isinstance(given[row], np.generic) else given[row]
        raise UserError(f"{where}: owner {value!r} at row {row}; expected {expected}.")
