"""The owners of rows in the user's input: names or whole numbers, checked row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import is_whole
from mmfl.errors import UserError

_MAX_NUMBER = 2**63  # whole numbers are int64


def read_owners(owner: ArrayLike, where: str) -> NDArray[Any]:
    """The owner of every row, as int64 numbers or as text; for anything else the error names the row.

    >>> read_owners([7.0, 3.0], "data 'steps'")
    array([7, 3])
    """
    # np.asarray of a list would convert numbers and missing values among names to text.
    values = np.array(owner, dtype=object) if isinstance(owner, Sequence) else np.asarray(owner)
    if values.ndim != 1:
        raise UserError(f"{where}: owner has shape {values.shape}; expected one entry per example.")
    if values.dtype.kind in "UT" or (values.dtype.kind == "O" and all(isinstance(name, str) for name in values)):
        names = values.astype(str)
        _refuse(where, values, names == "", "a name")
        return names
    is_name = np.array([isinstance(value, str) for value in values.tolist()], dtype=bool)
    _refuse(where, values, ~_whole_rows(values) & ~is_name, "a whole number from 0, or a name")
    if is_name.any():
        name, number = values[np.argmax(is_name)], values[np.argmin(is_name)]
        raise UserError(f"{where}: owners are names ({name!r}) and numbers ({number!r}); expected one kind.")
    return values.astype(np.int64)


def find_owners(names: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """The indices of owners in the sorted `names`, -1 for owners that are not among them."""
    if is_text(names) != is_text(values):
        return np.full(len(values), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(names, values), len(names) - 1)
    return np.where(names[place] == values, place, -1)


def is_text(names: NDArray[Any]) -> bool:
    """Whether owners have names rather than numbers."""
    return names.dtype.kind == "U"


def _whole_rows(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries are whole numbers from 0, such as 3 and 3.0."""
    if values.dtype.kind == "O":
        return np.array([_is_whole_number(value) for value in values], dtype=bool)
    if values.dtype.kind not in "iuf":
        return np.zeros(len(values), dtype=bool)
    with np.errstate(invalid="ignore"):
        whole: NDArray[np.bool_] = (values >= 0) & (values < _MAX_NUMBER) & (values == np.floor(values))
    return whole


def _is_whole_number(value: object) -> bool:
    if isinstance(value, float | np.floating):
        return bool(0 <= value < _MAX_NUMBER) and float(value).is_integer()
    return is_whole(value, 0) and int(value) < _MAX_NUMBER  # type: ignore[call-overload]


def _refuse(where: str, values: NDArray[Any], wrong: NDArray[np.bool_], expected: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        value = values[row].item() if isinstance(values[row], np.generic) else values[row]
        raise UserError(f"{where}: owner {value!r} at row {row}; expected {expected}.")
