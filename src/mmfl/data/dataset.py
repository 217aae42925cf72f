"""Dataset: the examples of a task, stored once for all clients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mmfl.checks import check_share
from mmfl.data.lazy import LazyArray, lazy, subset
from mmfl.data.owners import find_owners, read_owners
from mmfl.data.structure import Structure, describe, leaves, length, map_leaves, map_tensors, named_leaves
from mmfl.errors import UserError
from mmfl.randomness import Purpose, generator


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one task.

    Inputs and targets are tensors (or lazy arrays) with a row for each example, or tuples, lists or dictionaries of
    them. A model is
    called with a tensor as `module(x)`, with a tuple or list as `module(*x)` and with a dictionary as `module(**x)`;
    targets reach loss and metric as they are. Byte inputs (uint8) are scaled to [0, 1] when they are used, so that
    images need one byte per pixel.

    `owner` is the number of the natural owner (writer, role, device) of each training row, from 0, if there are owners.
    `owner_test` is the same for the test rows, which are then per-client test sets; without it the test set is shared.

    `owner_names[n]` is the name of owner n (sorted names or whole numbers), by which a federation matches owners of
    several tasks; by default it is the number n. If training and test rows were split from one pair of arrays, `rows`
    are their row numbers in these arrays.
    """

    name: str
    x: Structure
    y: Structure
    x_test: Structure
    y_test: Structure
    owner: NDArray[np.int64] | None = None
    owner_test: NDArray[np.int64] | None = None
    owner_names: NDArray[Any] | None = None
    rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __post_init__(self) -> None:
        for part, x, y, owner in (
            ("training", self.x, self.y, self.owner),
            ("test", self.x_test, self.y_test, self.owner_test),
        ):
            where = f"data '{self.name}' ({part})"
            _check_lengths(where, x, y)
            if length(x) == 0:
                raise UserError(f"{where}: no examples.")
            if owner is not None:
                _check_owner(where, owner, length(x))
            check_finite(where, x, y)

        for kind, train, test in (("inputs", self.x, self.x_test), ("targets", self.y, self.y_test)):
            one, other = describe(train, 1), describe(test, 1)
            if one != other:
                plural = "shape" if hasattr(train, "shape") else "shapes"
                raise UserError(f"data '{self.name}': training {kind} have {plural} {one}, test {kind} {other}.")
        self._name_owners()
        if self.rows is not None and [len(part) for part in self.rows] != [length(self.x), length(self.x_test)]:
            object.__setattr__(self, "rows", None)  # the examples were replaced, so the row numbers do not apply

    def __repr__(self) -> str:
        owners = "" if self.owner is None else f", {self.owners} owners"
        sizes = f"{length(self.x)} + {length(self.x_test)} examples{owners}"
        return f"Dataset('{self.name}', {sizes}, inputs {describe(self.x, 1)}, targets {describe(self.y, 1)})"

    def _name_owners(self) -> None:
        """Checks the owners' names; owners without names are named by their numbers."""
        numbers = [int(owner.max()) + 1 for owner in (self.owner, self.owner_test) if owner is not None]
        if not numbers:
            return
        if self.owner is None:
            raise UserError(f"data '{self.name}': test rows have owners, but the training rows have none.")
        if self.owner_names is None:
            object.__setattr__(self, "owner_names", np.arange(max(numbers)))
            return
        names = read_owners(self.owner_names, f"data '{self.name}': owner_names")
        if len(names) < max(numbers):
            raise UserError(f"data '{self.name}': owner {max(numbers) - 1}, but owner_names has {len(names)} entries.")
        if not (names[1:] > names[:-1]).all():
            raise UserError(f"data '{self.name}': owner_names are not sorted, or have one twice.")
        object.__setattr__(self, "owner_names", names)

    @property
    def owners(self) -> int:
        """Number of natural owners with training examples, 0 if the data has no owners."""
        return 0 if self.owner is None else int(np.count_nonzero(np.bincount(self.owner)))

    @property
    def labels(self) -> Tensor | None:
        """The class numbers of the training rows: the targets, or the only part of them that are whole numbers; None if
        there is no such part, or more than one."""
        found = [leaf for leaf in leaves(self.y) if isinstance(leaf, Tensor) and not leaf.is_floating_point()]
        return found[0] if len(found) == 1 else None

    def original_row(self, row: int, test: bool = False) -> int:
        """The number of a training or test row in the arrays that the data was split from."""
        return row if self.rows is None else int(self.rows[test][row])


def _check_owner(where: str, owner: NDArray[np.int64], rows: int) -> None:
    if not isinstance(owner, np.ndarray) or owner.dtype.kind not in "iu" or owner.ndim != 1:
        kind = f"{owner.dtype} of shape {owner.shape}" if isinstance(owner, np.ndarray) else type(owner).__name__
        raise UserError(f"{where}: owner is {kind}; expected an array of whole numbers, one per example.")
    if (owner < 0).any():
        row = int(np.argmax(owner < 0))
        raise UserError(f"{where}: owner {owner[row]} at row {row}; owners are numbered from 0.")
    if len(owner) != rows:
        raise UserError(f"{where}: {rows} examples but {len(owner)} owners.")


def _check_lengths(where: str, x: Structure, y: Structure) -> None:
    """Refuses structures without tensors, and leaves with different numbers of examples."""
    for kind, structure in (("inputs", x), ("targets", y)):
        if not leaves(structure):
            raise UserError(f"{where}: the {kind} are an empty {type(structure).__name__}.")
        for name, leaf in named_leaves(structure).items():
            if not isinstance(leaf, Tensor | LazyArray) or leaf.dim() == 0:
                expected = "expected a tensor with a row for each example"
                raise UserError(f"{where}: {kind}{name} is a {type(leaf).__name__}; {expected}.")
            if len(leaf) != length(structure):
                raise UserError(f"{where}: {kind}{name} has {len(leaf)} rows, others have {length(structure)}.")
    if length(x) != length(y):
        raise UserError(f"{where}: {length(x)} inputs but {length(y)} targets.")


def check_finite(where: str, x: Structure, y: Structure) -> None:
    """Refuses inputs and targets that are not finite; the error names the row. Lazy arrays are checked when read."""
    for kind, structure in (("input", x), ("target", y)):
        for name, values in named_leaves(structure).items():
            if isinstance(values, Tensor) and values.is_floating_point():
                wrong = (~torch.isfinite(values.reshape(len(values), -1)).all(1)).nonzero()
                if len(wrong):
                    raise UserError(f"{where}: {kind}{name} at row {int(wrong[0])} is not a finite number.")


def as_inputs(x: Structure) -> Structure:
    """Inputs for a model: bytes are scaled to [0, 1], everything else is returned as it is."""
    if isinstance(x, Tensor):
        return x.float() / 255 if x.dtype == torch.uint8 else x
    return map_tensors(as_inputs, x)


_EMPTY = torch.zeros(1, 1)
ELSEWHERE = Dataset("elsewhere", _EMPTY, _EMPTY, _EMPTY, _EMPTY)
"""A placeholder for data that is on the nodes of a deployment."""


def _tensors(x: Any, y: Any, where: str) -> tuple[Structure, Structure]:
    """Inputs and targets as tensors; whole numbers as targets are class numbers, which are int64."""
    inputs, targets = _structure(x, f"{where}x"), _structure(y, f"{where}y")
    return inputs, map_leaves(_as_target, targets)


def _as_target(leaf: Tensor | LazyArray) -> Tensor | LazyArray:
    """Whole numbers as int64; one number for each row is read at once, since partitions ask for labels."""
    leaf = leaf[:] if isinstance(leaf, LazyArray) and leaf.dim() == 1 else leaf
    return leaf if leaf.is_floating_point() else leaf.to(torch.int64)


def _structure(values: Any, what: str) -> Structure:
    """Tensors in the structure of the values: dictionaries, and tuples of arrays; a list is an array."""
    if isinstance(values, dict):
        return {key: _structure(part, f"{what}[{key!r}]") for key, part in values.items()}
    if isinstance(values, tuple) and any(map(_holds_arrays, values)):
        return tuple(_structure(part, f"{what}[{n}]") for n, part in enumerate(values))
    return _tensor(values, what)


def _holds_arrays(values: Any) -> bool:
    """Whether this is an array, a dictionary or a tuple of such, rather than numbers."""
    if isinstance(values, tuple):
        return any(map(_holds_arrays, values))
    return isinstance(values, dict) or getattr(values, "ndim", 0) > 0


def _tensor(values: Any, what: str) -> Tensor | LazyArray:
    """A tensor of the values: real numbers as float32, integers unchanged. Files stay where they are."""
    if isinstance(values, np.memmap | LazyArray):
        array = values if isinstance(values, LazyArray) else lazy(values, what)
        return array.to(torch.float32) if array.is_floating_point() else array
    if hasattr(values, "to_numpy"):  # a table, which torch does not read; a copy, since its own memory is read-only
        values = np.array(values.to_numpy())
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what}: is not an array of numbers ({_obstacle(values) or error}).") from None
    if tensor.dim() == 0:
        raise UserError(f"{what}: a single number; expected one entry per example.")
    return tensor.float() if tensor.is_floating_point() else tensor


def _obstacle(values: Any) -> str:
    """A text among the values, if there is one, and how to make class numbers of texts."""
    try:
        text = next((each for each in np.asarray(values).flat if isinstance(each, str)), None)
    except ValueError:  # rows of different lengths
        return ""
    remedy = "np.unique(values, return_inverse=True)[1] gives class numbers"
    return "" if text is None else f"{str(text)!r} is text; {remedy}"


def from_arrays(
    x: ArrayLike | Structure,
    y: ArrayLike | Structure,
    owner: ArrayLike | None = None,
    *,
    test: tuple[Any, ...] | None = None,
    test_share: float = 0.2,
    name: str = "data",
    seed: int = 0,
) -> Dataset:
    """A data set from your own arrays: inputs, targets and optionally the owner of every row.

    Inputs and targets are arrays with a row for each example, or tuples or dictionaries of arrays, as in `Dataset`;
    tables of pandas or polars count as arrays. A memory-mapped array, `np.memmap`, stays in its file, and rows are read
    when they are needed: see `lazy`. Inputs of bytes (uint8), such as images, reach the model as float32 in [0, 1]: it
    must not divide by 255 again.
    Owners are names or whole numbers from 0; owners with the same name or number in several tasks are the same client.
    `test` is (x, y) for a shared test set or (x, y, owner) for per-client test sets. Without it, `test_share` of the
    rows (of each owner) is set aside.

    >>> data = from_arrays(np.random.rand(10, 4), np.arange(10) % 2, owner=["ann", "bob"] * 5)
    >>> data.owners, len(data.x), len(data.x_test)
    (2, 8, 2)
    """
    where = f"data '{name}'"
    inputs, targets = _tensors(x, y, f"{where}: ")
    _check_lengths(where, inputs, targets)
    names: NDArray[Any] | None = None
    numbers: NDArray[np.int64] | None = None
    if owner is not None:
        names, numbers = np.unique(read_owners(owner, where), return_inverse=True)
        if len(numbers) != length(inputs):
            raise UserError(f"{where}: {length(inputs)} examples but {len(numbers)} owners.")
    if test is not None:
        x_test, y_test, owner_test = _given_test(test, names, where)
        return Dataset(name, inputs, targets, x_test, y_test, numbers, owner_test, names)
    check_share(where, "test_share", test_share)
    check_finite(where, inputs, targets)
    groups = numbers if numbers is not None else np.zeros(length(inputs), dtype=np.int64)
    held_out = _hold_out(groups, test_share, generator(seed, Purpose.DATA))
    parts = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    x_train, x_test = (subset(inputs, part) for part in parts)
    y_train, y_test = (subset(targets, part) for part in parts)
    owner_train, owner_test = (None if numbers is None else numbers[part] for part in parts)
    return Dataset(name, x_train, y_train, x_test, y_test, owner_train, owner_test, names, parts)


def _given_test(
    test: Any, names: NDArray[Any] | None, where: str
) -> tuple[Structure, Structure, NDArray[np.int64] | None]:
    """Inputs, targets and owners of a test set; `names` are the owners of the training rows."""
    if not isinstance(test, tuple | list) or not 2 <= len(test) <= 3:
        parts = f"{len(test)} parts" if isinstance(test, tuple | list) else f"a {type(test).__name__}"
        raise UserError(f"{where}: test has {parts}; expected (x, y) or (x, y, owner).")
    x, y = _tensors(test[0], test[1], f"{where}: test ")
    if len(test) == 2 or test[2] is None:
        return x, y, None
    if names is None:
        raise UserError(f"{where}: test rows have owners, but the training rows have none (owner=...).")
    owners = read_owners(test[2], f"{where} (test)")
    numbers = find_owners(names, owners)
    if (numbers < 0).any():
        unknown = str(owners[np.argmax(numbers < 0)])
        raise UserError(f"{where}: test owner {unknown!r} has no training examples.")
    return x, y, numbers


def _hold_out(groups: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Marks `share` of the rows of every group, at least one and never all."""
    order = np.lexsort((rng.random(len(groups)), groups))
    counts = np.bincount(groups)
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    marked = np.zeros(len(groups), dtype=bool)
    marked[order] = rank < np.minimum(np.maximum(1, np.round(share * counts)), counts - 1)[groups[order]]
    return marked
