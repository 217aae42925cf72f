"""Adapters for data sets of other libraries: map-style data sets of PyTorch, and those of Hugging Face."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mmfl.data.dataset import Dataset, from_arrays
from mmfl.data.lazy import Items, read
from mmfl.data.structure import Structure, describe, map_leaves
from mmfl.errors import UserError, first_line, nearest


def from_torch_dataset(
    dataset: Any,
    test: Any = None,
    owner: ArrayLike | None = None,
    owner_test: ArrayLike | None = None,
    *,
    lazy: bool = False,
    test_share: float = 0.2,
    name: str = "data",
    seed: int = 0,
) -> Dataset:
    """A data set from anything with a length whose items are (input, label), such as those of torchvision.

    Inputs and labels may be tensors, arrays, numbers or PIL images, which become bytes [channels, height, width], and
    dictionaries or tuples of these. `test` is another such data set; `owner` and `owner_test` have one entry per row.
    Without `test`, `test_share` of the rows (of each owner) is set aside.

    The data set is read once, so a random transform is applied once. With `lazy` an input is read whenever it is needed
    instead, so that the data may be larger than memory; labels are read once, from `dataset.targets` if there are such.

    >>> pairs = [(torch.full((3,), float(n)), n % 2) for n in range(10)]
    >>> data = from_torch_dataset(pairs, owner=["ann", "bob"] * 5)
    >>> data.owners, tuple(data.x.shape), tuple(data.x_test.shape)
    (2, (8, 3), (2, 3))
    """
    if test is None and owner_test is not None:
        raise UserError(f"data '{name}': owner_test is given, but no test set.")
    test_part = None if test is None else (*_pairs(test, f"data '{name}' (test)", lazy), owner_test)
    x, y = _pairs(dataset, f"data '{name}'", lazy)
    return from_arrays(x, y, owner, test=test_part, test_share=test_share, name=name, seed=seed)


def from_huggingface(
    dataset: Any,
    x: str | Sequence[str] = "image",
    y: str | Sequence[str] = "label",
    owner: str | None = None,
    test: Any = None,
    *,
    lazy: bool = False,
    test_share: float = 0.2,
    name: str = "data",
    seed: int = 0,
) -> Dataset:
    """A data set from the columns `x`, `y` and, if there is one, `owner` of a `datasets.Dataset`.

    Columns may contain numbers, lists of numbers or images; a list of column names makes a dictionary of them. With
    `lazy` inputs are read whenever they are needed, so that the data may be larger than memory.

    Of a `DatasetDict`, the part `train` is for training and `test`, if there is one, for testing. `test` names another
    part or is a data set itself; without one, `test_share`
    of the rows (of each owner) is set aside. Test rows have owners if they have the owner column too.
    """
    if isinstance(dataset, Mapping):
        for part in ("train", test):
            if isinstance(part, str) and part not in dataset:
                raise UserError(f"data '{name}': no part '{part}': {nearest(part, dataset)}")
        if test is None or isinstance(test, str):
            test = dataset.get(test or "test")
        dataset = dataset["train"]
    if isinstance(test, str):
        raise UserError(f"data '{name}': test is '{test}', but the data set has no parts; expected a data set.")
    test_part = None
    if test is not None:
        where = f"data '{name}' (test)"
        test_part = _columns(test, x, y, owner if owner in _names(test, where) else None, where, lazy)
    train = _columns(dataset, x, y, owner, f"data '{name}'", lazy)
    return from_arrays(*train, test=test_part, test_share=test_share, name=name, seed=seed)


def _pairs(dataset: Any, where: str, lazy: bool) -> tuple[Structure, Structure]:
    """Inputs and labels of a map-style data set."""
    try:
        rows = len(dataset)
    except TypeError:
        raise UserError(f"{where}: a {type(dataset).__name__} has no length; expected a map-style data set.") from None

    def pair(row: int) -> Any:
        try:
            item = dataset[row]
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{where}: row {row} cannot be read: {first_line(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"{where}: row {row} is a {type(item).__name__}; expected a pair (input, label).")
        return item

    if lazy and rows:
        targets = getattr(dataset, "targets", None)
        labels: Iterable[Any] = (pair(row)[1] for row in range(rows))
        if targets is not None and len(targets) == rows and np.array_equal(targets[0], pair(0)[1]):
            labels = targets
        inputs = read_items(dataset, lambda item: item[0], f"{where}, input", lazy)
        return inputs, _stack(labels, rows, f"{where}, label")

    seen: list[Any] = []

    def inputs_of_pairs() -> Iterable[Any]:
        for row in range(rows):
            value, label = pair(row)
            seen.append(label)
            yield value

    return _stack(inputs_of_pairs(), rows, f"{where}, input"), _stack(seen, rows, f"{where}, label")


def read_items(items: Any, value_of: Callable[[Any], Any], where: str, lazy: bool) -> Structure:
    """A value of each item of anything with a length, as tensors or as lazy arrays."""
    arrays = Items(items, lambda item, place: _entry(value_of(item), place), where).arrays()
    return arrays if lazy else read(arrays, np.arange(len(items)))


def _columns(
    dataset: Any, x: str | Sequence[str], y: str | Sequence[str], owner: str | None, where: str, lazy: bool
) -> tuple[Structure, Structure, list[Any] | None]:
    """The inputs, the targets and, if there is an owner column, the owners."""
    owners = None if owner is None else list(_values(dataset, owner, where))
    return _column(dataset, x, where, lazy), _column(dataset, y, where, lazy=False), owners


def _column(dataset: Any, name: str | Sequence[str], where: str, lazy: bool) -> Structure:
    """The values of a column, or of several in a dictionary."""
    if not isinstance(name, str):
        return {each: _column(dataset, each, where, lazy) for each in name}
    _check_column(dataset, name, where)
    if lazy and hasattr(dataset, "select_columns") and len(dataset):
        column = dataset.select_columns([name])
        return read_items(column, lambda item: item[name], f"{where}, column '{name}'", lazy)
    values = _values(dataset, name, where)
    return _stack(values, len(values), f"{where}, column '{name}'")


def _names(dataset: Any, where: str) -> Sequence[str]:
    names = getattr(dataset, "column_names", None)
    if names is None or isinstance(names, Mapping):
        raise UserError(f"{where}: a {type(dataset).__name__} has no column_names; expected a data set with columns.")
    return list(names)


def _check_column(dataset: Any, column: str, where: str) -> None:
    names = _names(dataset, where)
    if column not in names:
        raise UserError(f"{where}: unknown column '{column}': {nearest(column, names)}")


def _values(dataset: Any, column: str, where: str) -> Any:
    """The values of a column, which must have a length."""
    _check_column(dataset, column, where)
    try:
        values = dataset[column]
        len(values)
    except (TypeError, NotImplementedError):
        raise UserError(f"{where}: a {type(dataset).__name__} streams its rows; expected one with a length.") from None
    return values


def _stack(values: Iterable[Any], rows: int, where: str) -> Structure:
    """Tensors [rows, ...] of the values, filled row by row to avoid a second copy."""
    stacked: Structure = None
    for row, value in enumerate(values):
        entry = _entry(value, f"{where} at row {row}")
        if stacked is None:
            first = describe(entry)
            stacked = map_leaves(lambda leaf: torch.empty((rows, *leaf.shape), dtype=leaf.dtype), entry)
        if describe(entry) != first:
            shapes = f"{describe(entry)}, but that at row 0 has {first}"
            raise UserError(f"{where} at row {row} has shape {shapes}; all must have the same.")
        stacked = map_leaves(partial(_put, row), stacked, entry)
    if stacked is None:
        raise UserError(f"{where}: no rows.")
    return stacked


def _put(row: int, stacked: Tensor, entry: Tensor) -> Tensor:
    """Writes a row; what were integers so far are real numbers from the first real one on."""
    stacked = stacked.to(torch.promote_types(entry.dtype, stacked.dtype))
    stacked[row] = entry
    return stacked


def _entry(value: Any, where: str) -> Structure:
    """One value as tensors: dictionaries, and tuples or lists of arrays, keep their structure."""
    if isinstance(value, dict):
        return {key: _entry(part, f"{where}, {key!r}") for key, part in value.items()}
    if isinstance(value, tuple | list) and any(map(_is_array, value)):
        return tuple(_entry(part, f"{where}, part {n}") for n, part in enumerate(value))
    return _tensor(value, where)


def _is_array(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 0 or isinstance(value, dict) or hasattr(value, "getbands")


def _tensor(value: Any, where: str) -> Tensor:
    """One value as a tensor; an image as bytes, channels first."""
    if isinstance(value, Tensor):
        entry = value.detach()
    elif hasattr(value, "getbands"):  # a PIL image
        pixels = torch.from_numpy(np.array(value.convert("L" if value.mode in ("1", "L") else "RGB")))
        entry = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    else:
        try:
            entry = torch.tensor(value)
        except (TypeError, ValueError, RuntimeError):
            text = repr(value)
            short = text if len(text) <= 40 else f"a {type(value).__name__}"
            raise UserError(f"{where} is {short}; expected numbers or an image.") from None
    return entry.float() if entry.is_floating_point() else entry
