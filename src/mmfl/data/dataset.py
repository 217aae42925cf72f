"""Dataset: base tensors of examples, held once, whoever owns which rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mmfl.errors import UserError
from mmfl.randomness import Purpose, generator


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one task.

    Inputs that are bytes (uint8) are scaled to [0, 1] when they are used, so that images take a byte a pixel.
    `owner` numbers the natural owner (writer, role, device) of each training row from 0, where there is one;
    `owner_test` does so for the test rows and makes them per-client test sets. Without it the test set is shared.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    owner: NDArray[np.int64] | None = None
    owner_test: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part, x, y, owner in (
            ("training", self.x, self.y, self.owner),
            ("test", self.x_test, self.y_test, self.owner_test),
        ):
            where = f"data '{self.name}' ({part})"
            if len(x) == 0:
                raise UserError(f"{where}: no examples.")
            if len(x) != len(y):
                raise UserError(f"{where}: {len(x)} inputs but {len(y)} targets.")
            if owner is not None and (owner < 0).any():
                row = int(np.argmax(owner < 0))
                raise UserError(f"{where}: owner {owner[row]} at row {row}; owners are numbered from 0.")
            if owner is not None and len(owner) != len(x):
                raise UserError(f"{where}: {len(x)} examples but {len(owner)} owners.")
            for kind, values in (("input", x), ("target", y)):
                if values.is_floating_point() and not bool((good := _finite_rows(values)).all()):
                    row = int((~good).nonzero()[0])
                    raise UserError(f"{where}: {kind} at row {row} is not a finite number.")

        if self.x.shape[1:] != self.x_test.shape[1:]:
            raise UserError(
                f"data '{self.name}': training inputs have shape {tuple(self.x.shape[1:])}, test inputs "
                f"{tuple(self.x_test.shape[1:])}."
            )

    @property
    def owners(self) -> int:
        """Number of natural owners, 0 where the source has none."""
        return 0 if self.owner is None else int(self.owner.max()) + 1


def as_inputs(x: Tensor) -> Tensor:
    """What a model sees of stored inputs: bytes, as images are kept, as numbers in [0, 1]; all else as it is."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _finite_rows(values: Tensor) -> Tensor:
    return torch.isfinite(values.reshape(len(values), -1)).all(1)


_NOTHING = torch.zeros(1, 1)
ELSEWHERE = Dataset("elsewhere", _NOTHING, _NOTHING, _NOTHING, _NOTHING)
"""Stands for data that is not here: a deployment's server has none."""


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor of numbers: real ones as float32, whole ones as they are (targets become int64 when compared)."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what}: cannot be made an array of numbers ({error}).") from None
    if tensor.dim() == 0:
        raise UserError(f"{what}: a single number; expected one entry per example.")
    return tensor.float() if tensor.is_floating_point() else tensor


def from_arrays(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    owner: ArrayLike | None = None,
    *,
    test: tuple[Any, ...] | None = None,
    test_share: float = 0.2,
    name: str = "data",
    seed: int = 0,
) -> Dataset:
    """A data set from your own arrays: inputs, targets and, if you have them, the owner of every row.

    `test` is (x, y) for a shared test set or (x, y, owner) for per-client ones. Without it, `test_share` of the
    rows, of each owner where owners are given, is set aside.

    >>> data = from_arrays(np.random.rand(10, 4), np.arange(10) % 2, owner=["ann", "bob"] * 5)
    >>> data.owners, len(data.x), len(data.x_test)
    (2, 8, 2)
    """
    inputs, targets = as_tensor(x, f"data '{name}': x"), as_tensor(y, f"data '{name}': y")
    targets = targets if targets.is_floating_point() else targets.long()
    if len(inputs) != len(targets):
        raise UserError(f"data '{name}': {len(inputs)} inputs but {len(targets)} targets.")
    names: NDArray[Any] | None = None
    numbers: NDArray[np.int64] | None = None
    if owner is not None:
        try:
            names, numbers = np.unique(np.asarray(owner), return_inverse=True)
        except TypeError as error:
            raise UserError(f"data '{name}': owner must be numbers or names, not both ({error}).") from None
        if numbers.ndim != 1:
            raise UserError(f"data '{name}': owner has shape {numbers.shape}; expected one entry per example.")
        if len(numbers) != len(inputs):
            raise UserError(f"data '{name}': {len(inputs)} examples but {len(numbers)} owners.")
    if test is not None:
        if not 2 <= len(test) <= 3:
            raise UserError(f"data '{name}': test has {len(test)} parts; expected (x, y) or (x, y, owner).")
        if len(test) == 3 and names is None:
            raise UserError(f"data '{name}': test rows have owners, but the training rows have none (owner=...).")
        x_test, y_test = (
            as_tensor(test[0], f"data '{name}': test x"),
            as_tensor(test[1], f"data '{name}': test y"),
        )
        y_test = y_test if y_test.is_floating_point() else y_test.long()
        owner_test = None
        if len(test) > 2 and names is not None:
            owner_test = np.searchsorted(names, np.asarray(test[2]))
            known = names[np.minimum(owner_test, len(names) - 1)] == np.asarray(test[2])
            if not known.all():
                stranger = np.asarray(test[2])[~known][0]
                raise UserError(f"data '{name}': test owner {str(stranger)!r} has no training examples.")
        return Dataset(name, inputs, targets, x_test, y_test, numbers, owner_test)
    if not 0 < test_share < 1:
        raise UserError(f"data '{name}': test_share is {test_share}; expected a number between 0 and 1.")
    groups = numbers if numbers is not None else np.zeros(len(inputs), dtype=np.int64)
    held_out = _hold_out(groups, test_share, generator(seed, Purpose.DATA))
    keep, out = torch.from_numpy(np.flatnonzero(~held_out)), torch.from_numpy(np.flatnonzero(held_out))
    return Dataset(
        name,
        inputs[keep],
        targets[keep],
        inputs[out],
        targets[out],
        None if numbers is None else numbers[~held_out],
        None if numbers is None else numbers[held_out],
    )


def _hold_out(groups: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Marks `share` of the rows of every group, never all of them."""
    order = np.lexsort((rng.random(len(groups)), groups))
    counts = np.bincount(groups)
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    marked = np.zeros(len(groups), dtype=bool)
    marked[order] = rank < np.minimum(np.maximum(1, np.round(share * counts)), counts - 1)[groups[order]]
    return marked
