"""Lazy arrays: rows that are read from files or from another library's data set when they are needed.

They take the place of tensors in a data set, so that it may be larger than memory. A training step reads its own rows
alone, and the numbers are those of the same data in memory.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.structure import Structure, describe, leaves, length, map_leaves
from mmfl.errors import UserError, first_line

Rows = NDArray[np.int64]


class RowSource(Protocol):
    """What lazy arrays read from: examples, each with one or more leaves."""

    where: str

    def read(self, rows: Rows) -> Sequence[Tensor]:
        """The leaves of these examples, a tensor [rows, ...] each; the rows ascend, and none comes twice."""


@dataclass(frozen=True, eq=False)
class LazyArray:
    """An array whose rows are read when they are needed: leaf `leaf` of the examples `rows` of a source."""

    source: RowSource
    leaf: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | Rows | Tensor) -> Tensor:
        """Reads rows."""
        rows: Tensor = read(self, np.arange(len(self))[index])
        return rows

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def dim(self) -> int:
        """The number of dimensions, as a tensor tells it."""
        return self.ndim

    def is_floating_point(self) -> bool:
        """Whether these are real numbers."""
        return self.dtype.is_floating_point

    def to(self, dtype: torch.dtype) -> "LazyArray":
        """The same numbers in another type."""
        return replace(self, dtype=dtype)

    def subset(self, rows: Rows) -> "LazyArray":
        """Some of the rows, still unread."""
        return replace(self, rows=self.rows[rows], shape=(len(rows), *self.shape[1:]))


def is_lazy(structure: Structure) -> bool:
    """Whether any part of a structure is read when needed."""
    return any(isinstance(leaf, LazyArray) for leaf in leaves(structure))


def subset(structure: Structure, rows: Rows) -> Structure:
    """Some of the examples; what is lazy stays so."""
    index = torch.from_numpy(rows)
    return map_leaves(lambda leaf: leaf.subset(rows) if isinstance(leaf, LazyArray) else leaf[index], structure)


def read(structure: Structure, rows: Rows) -> Structure:
    """The examples of these numbers as tensors. Leaves of one source are read together, and no example twice."""
    known: dict[tuple[int, int], tuple[Sequence[Tensor], Tensor | None, Rows]] = {}

    def read_leaf(leaf: LazyArray | Tensor) -> Tensor:
        if isinstance(leaf, Tensor):
            return leaf[torch.from_numpy(rows)]
        key = id(leaf.source), id(leaf.rows)
        if key not in known:
            wanted = leaf.rows[rows]
            distinct, inverse = np.unique(wanted, return_inverse=True)
            place = None if np.array_equal(wanted, distinct) else torch.from_numpy(inverse)
            known[key] = _read(leaf.source, distinct), place, distinct
        values, place, distinct = known[key]
        typed = values[leaf.leaf].to(leaf.dtype)
        if typed.is_floating_point():
            wrong = (~torch.isfinite(typed.reshape(len(typed), -1)).all(1)).nonzero()
            if len(wrong):
                raise UserError(f"{leaf.source.where}: row {distinct[int(wrong[0])]} is not a finite number.")
        return typed if place is None else typed[place]

    return map_leaves(read_leaf, structure)


def _read(source: RowSource, rows: Rows) -> Sequence[Tensor]:
    try:
        return source.read(rows)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{source.where}: rows {rows[0]} to {rows[-1]} cannot be read: {first_line(error)}") from None


def join(*parts: Structure) -> Structure:
    """The examples of several structures, one after another; lazy if any of them is."""
    if not is_lazy(parts):
        return map_leaves(lambda *tensors: torch.cat(tensors), *parts)
    rows, number = np.arange(sum(map(length, parts))), itertools.count()
    source = _Joined(parts)

    def join_leaves(first: LazyArray | Tensor, *_: LazyArray | Tensor) -> LazyArray:
        return LazyArray(source, next(number), (len(rows), *first.shape[1:]), first.dtype, rows)

    return map_leaves(join_leaves, *parts)


class _Joined:
    """Several structures, one after another."""

    def __init__(self, parts: Sequence[Structure]):
        self.where, self.parts = "data", parts
        self.ends = np.cumsum([length(part) for part in parts])

    def read(self, rows: Rows) -> Sequence[Tensor]:
        """Part by part; the rows ascend, so each part's are neighbours."""
        which = np.searchsorted(self.ends, rows, side="right")
        begin = self.ends - [length(part) for part in self.parts]
        pieces = [leaves(read(self.parts[p], rows[which == p] - begin[p])) for p in np.unique(which).tolist()]
        return [torch.cat(leaf) for leaf in zip(*pieces, strict=True)]


def lazy(values: Any, where: str = "data") -> LazyArray:
    """A lazy array over anything that has a shape and gives rows by their numbers, such as an `h5py` data set.

    Of a memory-mapped array, `np.memmap`, rows are read from its file, so that no memory is taken between reads, and
    a file that has vanished or shrunk is noticed.

    >>> array = lazy(np.arange(6.0).reshape(3, 2))
    >>> array.shape, array[1:]
    ((3, 2), tensor([[2., 3.],
            [4., 5.]]))
    """
    shape = tuple(getattr(values, "shape", ()))
    if not shape:
        raise UserError(f"{where}: a {type(values).__name__} has no shape; expected an array with a row per example.")
    offset = _offset(values) if isinstance(values, np.memmap) else None
    source: RowSource = _Array(values, where) if offset is None else _MappedFile(values, offset, where)
    dtype = _tensor(np.empty(0, np.dtype(values.dtype))).dtype
    return LazyArray(source, 0, shape, torch.float32 if dtype.is_floating_point else dtype, np.arange(shape[0]))


def _offset(values: "np.memmap[Any, Any]") -> int | None:
    """Where in its file a memory-mapped array begins; None for one whose numbers do not lie one after another."""
    whole = values
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if not values.flags.c_contiguous or values.filename is None:
        return None
    return int(whole.offset + values.ctypes.data - whole.ctypes.data)


def _tensor(values: Any) -> Tensor:
    array = np.ascontiguousarray(values)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


class _MappedFile:
    """An array in a file."""

    def __init__(self, values: "np.memmap[Any, Any]", offset: int, where: str):
        self.where, self.offset = where, offset
        self.path, self.dtype, self.shape = str(values.filename), values.dtype, values.shape

    def read(self, rows: Rows) -> Sequence[Tensor]:
        """Neighbouring rows with one read. The pages of a mapping would stay in memory."""
        row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:]))
        values = np.empty((len(rows), row_bytes), np.uint8)
        gaps = np.flatnonzero(np.diff(rows) != 1) + 1
        with open(self.path, "rb", buffering=0) as file:
            for begin, end in itertools.pairwise([0, *gaps.tolist(), len(rows)]):
                file.seek(self.offset + int(rows[begin]) * row_bytes)
                if file.readinto(values[begin:end].data) != (end - begin) * row_bytes:
                    raise EOFError(f"'{self.path}' is shorter than it was")
        return [_tensor(values.view(self.dtype).reshape(len(rows), *self.shape[1:]))]


class _Array:
    """An array of any library; one thread at a time reads it."""

    def __init__(self, values: Any, where: str):
        self.where, self.values, self._lock = where, values, threading.Lock()

    def read(self, rows: Rows) -> Sequence[Tensor]:
        """The rows, as the library gives them."""
        with self._lock:
            return [_tensor(self.values[rows])]


class Items:
    """A data set that gives one item at a time; `convert(item, where)` makes a structure of tensors of it. Only one
    thread at a time reads it, since few data sets expect more."""

    def __init__(self, items: Any, convert: Callable[[Any, str], Structure], where: str):
        self.items, self.convert, self.where, self._lock = items, convert, where, threading.Lock()
        self.first = self._item(0)
        again = leaves(self._item(0))
        if not all(torch.equal(*pair) for pair in zip(leaves(self.first), again, strict=True)):
            remedy = "random transforms belong in Task(augment=...)"
            raise UserError(f"{where}: row 0 differs from one read to the next; {remedy}.")

    def read(self, rows: Rows) -> Sequence[Tensor]:
        """Item by item, each of the same structure, shapes and kinds of numbers as the first."""
        stacked = [torch.empty((len(rows), *leaf.shape), dtype=leaf.dtype) for leaf in leaves(self.first)]
        for n, row in enumerate(rows.tolist()):
            entry = self._item(row)
            if describe(entry) != describe(self.first):
                shapes = f"{describe(entry)}, but that at row 0 has {describe(self.first)}"
                raise UserError(f"{self._place(row)} has shape {shapes}; all must have the same.")
            for place, leaf in zip(stacked, leaves(entry), strict=True):
                if not torch.can_cast(leaf.dtype, place.dtype):
                    types = f"{leaf.dtype}, but that at row 0 {place.dtype}".replace("torch.", "")
                    raise UserError(f"{self._place(row)} is {types}; all must be of the same type.")
                place[n] = leaf
        return stacked

    def arrays(self) -> Structure:
        """A lazy array for each leaf of the items."""
        rows, number = np.arange(len(self.items)), itertools.count()
        return map_leaves(
            lambda leaf: LazyArray(self, next(number), (len(rows), *leaf.shape), leaf.dtype, rows), self.first
        )

    def _item(self, row: int) -> Structure:
        with self._lock:
            try:
                return self.convert(self.items[row], self._place(row))
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"{self._place(row)} cannot be read: {first_line(error)}") from None

    def _place(self, row: int) -> str:
        """Where a row is, with the name of its file if it is one."""
        file = self.items[row] if isinstance(self.items, list) else None
        return f"{self.where} at row {row}" + (f" ('{file}')" if isinstance(file, Path) else "")
