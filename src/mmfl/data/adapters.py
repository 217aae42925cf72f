"""Adapters for data sets of other libraries: map-style data sets of PyTorch, and those of Hugging Face."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mmfl.data.dataset import Dataset, from_arrays
from mmfl.errors import UserError, nearest


def from_torch_dataset(
    dataset: Any,
    test: Any = None,
    owner: ArrayLike | None = None,
    owner_test: ArrayLike | None = None,
    *,
    test_share: float = 0.2,
    name: str = "data",
    seed: int = 0,
) -> Dataset:
    """A data set from anything with a length whose items are (input, label), such as those of torchvision.

    Inputs and labels may be tensors, arrays, numbers or PIL images, which become bytes [channels, height, width]. The
    data set is read once, so a random transform is applied once. `test` is another such data set; `owner` and
    `owner_test` have one entry per row. Without `test`, `test_share` of the rows (of each owner) is set aside.

    >>> pairs = [(torch.full((3,), float(n)), n % 2) for n in range(10)]
    >>> data = from_torch_dataset(pairs, owner=["ann", "bob"] * 5)
    >>> data.owners, tuple(data.x.shape), tuple(data.x_test.shape)
    (2, (8, 3), (2, 3))
    """
    if test is None and owner_test is not None:
        raise UserError(f"data '{name}': owner_test is given, but no test set.")
    test_part = None if test is None else _part(*_pairs(test, f"data '{name}' (test)"), owner_test)
    x, y = _pairs(dataset, f"data '{name}'")
    return from_arrays(x, y, owner, test=test_part, test_share=test_share, name=name, seed=seed)


def from_huggingface(
    dataset: Any,
    x: str = "image",
    y: str = "label",
    owner: str | None = None,
    test: Any = None,
    *,
    test_share: float = 0.2,
    name: str = "data",
    seed: int = 0,
) -> Dataset:
    """A data set from the columns `x`, `y` and, if there is one, `owner` of a `datasets.Dataset`.

    Columns may contain numbers, lists of numbers or images. Of a `DatasetDict`, the part `train` is for training and
    `test`, if there is one, for testing. `test` names another part or is a data set itself; without one, `test_share`
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
        test_part = _part(*_columns(test, x, y, owner if owner in _names(test, where) else None, where))
    train = _columns(dataset, x, y, owner, f"data '{name}'")
    return from_arrays(*train, test=test_part, test_share=test_share, name=name, seed=seed)


def _part(x: Tensor, y: Tensor, owner: ArrayLike | None) -> tuple[Any, ...]:
    """A test set, with owners if it has any."""
    return (x, y) if owner is None else (x, y, owner)


def _pairs(dataset: Any, where: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a map-style data set."""
    try:
        rows = len(dataset)
    except TypeError:
        raise UserError(f"{where}: a {type(dataset).__name__} has no length; expected a map-style data set.") from None

    labels: list[Any] = []

    def inputs() -> Iterable[Any]:
        for row in range(rows):
            item = dataset[row]
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise UserError(f"{where}: row {row} is a {type(item).__name__}; expected a pair (input, label).")
            labels.append(item[1])
            yield item[0]

    return _stack(inputs(), rows, f"{where}, input"), _stack(labels, rows, f"{where}, label")


def _columns(dataset: Any, x: str, y: str, owner: str | None, where: str) -> tuple[Tensor, Tensor, list[Any] | None]:
    """The inputs, the targets and, if there is an owner column, the owners."""
    columns = {name: _values(dataset, name, where) for name in (owner, x, y) if name is not None}
    inputs, targets = (_stack(columns[name], len(columns[name]), f"{where}, column '{name}'") for name in (x, y))
    return inputs, targets, None if owner is None else list(columns[owner])


def _names(dataset: Any, where: str) -> Sequence[str]:
    names = getattr(dataset, "column_names", None)
    if names is None or isinstance(names, Mapping):
        raise UserError(f"{where}: a {type(dataset).__name__} has no column_names; expected a data set with columns.")
    return list(names)


def _values(dataset: Any, column: str, where: str) -> Any:
    """The values of a column, which must have a length."""
    names = _names(dataset, where)
    if column not in names:
        raise UserError(f"{where}: unknown column '{column}': {nearest(column, names)}")
    try:
        values = dataset[column]
        len(values)
    except (TypeError, NotImplementedError):
        raise UserError(f"{where}: a {type(dataset).__name__} streams its rows; expected one with a length.") from None
    return values


def _stack(values: Iterable[Any], rows: int, where: str) -> Tensor:
    """One tensor [rows, ...] of the values, filled row by row to avoid a second copy."""
    stacked: Tensor | None = None
    for row, value in enumerate(values):
        entry = _tensor(value, f"{where} at row {row}")
        if stacked is None:
            stacked = torch.empty((rows, *entry.shape), dtype=entry.dtype)
        if entry.shape != stacked.shape[1:]:
            shapes = f"{tuple(entry.shape)}, but that at row 0 has {tuple(stacked.shape[1:])}"
            raise UserError(f"{where} at row {row} has shape {shapes}; all must have the same.")
        stacked = stacked.to(torch.promote_types(entry.dtype, stacked.dtype))  # integers, then a real number
        stacked[row] = entry
    if stacked is None:
        raise UserError(f"{where}: no rows.")
    return stacked


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
