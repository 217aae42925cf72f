"""The owners of rows in the user's input: names or whole numbers, checked row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    if values.dtype.kind in "iu" and ((values >= 0) & (values < _MAX_NUMBER)).all():
        return values.astype(np.int64)
    is_name = np.array([isinstance(value, str) and value != "" for value in values], dtype=bool)
    is_number = np.array([_is_whole_number(value) for value in values], dtype=bool)
    if (wrong := ~(is_name | is_number)).any():
        row = int(np.argmax(wrong))
        value = values[row].item() if isinstance(values[row], np.generic) else values[row]
        raise UserError(f"{where}: owner {value!r} at row {row}; expected a whole number from 0, or a name.")
    if is_name.any() and is_number.any():
        name, number = values[np.argmax(is_name)], values[np.argmax(is_number)]
        raise UserError(f"{where}: owners are names ({name!r}) and numbers ({number!r}); expected one kind.")
    return values.astype(np.int64 if is_number.any() else str)


def _is_whole_number(value: object) -> bool:
    """Whether it is a whole number from 0, such as 3 and 3.0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(0 <= value < _MAX_NUMBER and value % 1 == 0)


def find_owners(names: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """The indices of owners in the sorted `names`, -1 for owners that are not among them."""
    if is_text(names) != is_text(values):
        return np.full(len(values), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(names, values), len(names) - 1)
    return np.where(names[place] == values, place, -1)


def is_text(names: NDArray[Any]) -> bool:
    """Whether owners have names rather than numbers."""
    return names.dtype.kind == "U"
