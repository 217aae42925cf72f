"""ClientRows and StoredRows: a vector for each of several clients, in this process or elsewhere, and stored ones."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.errors import UserError
from mmfl.tensors import to_device
from mmfl.updates.partial_sum import PartialSum
from mmfl.updates.world import SINGLE_PROCESS, World

if TYPE_CHECKING:
    from mmfl.updates.store import ClientVectorStore
    from mmfl.updates.updates import Updates

# Bytes of stored vectors to read at once: few that stay in a processor's caches, or many that keep a GPU busy.
_BATCH_BYTES = {"cpu": 2**23, "cuda": 2**28}


@dataclass(frozen=True, eq=False)
class ClientRows:
    """A matrix [rows, parameters] with a row for each of some clients.

    `matrix` has the rows that are in this process, `places` their places among all; None: it has all of them. The
    others are with other processes of the `world`, or with clients that keep them: then `norm` and `inner` are what
    the clients say of all rows, ||G|| and `<G, h>` with h the client's last update.
    """

    matrix: Tensor
    places: NDArray[np.int64] | None = None
    length: int = -1
    world: World = SINGLE_PROCESS
    norm: NDArray[np.float64] | None = None
    inner: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.matrix) if self.places is None else self.length

    @property
    def are_single(self) -> bool:
        """Whether each row is known by itself, and not only their sum."""
        return True

    def all(self) -> Tensor:
        """All rows; those of other processes are fetched, which takes memory and time."""
        if self.places is None:
            return self.matrix
        if self.world.size == 1 and len(self.places) < self.length:
            raise UserError(
                "the aggregation reads updates that clients did not send, since it says `reads_undrawn = False`."
            )
        rows = self.matrix.new_zeros(self.length, self.matrix.shape[1])
        rows[to_device(self.places, rows.device)] = self.matrix
        return self.world.sum(rows)

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of all rows: coefficients @ rows, [parameters]."""
        return PartialSum.of(to_device(self.take_held(coefficients), self.matrix) @ self.matrix, self.world)

    def norms(self) -> NDArray[np.float64]:
        """||G|| of each row."""
        return (
            self.norm if self.norm is not None else self.gather_numbers(self.matrix.norm(dim=1).double().cpu().numpy())
        )

    def gather_numbers(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """A number for every row, given those of the rows in this process."""
        if self.places is None or self.world.size == 1:
            return numbers
        numbers_of_all = np.zeros(len(self))
        numbers_of_all[self.places] = numbers
        return self.world.sums(numbers_of_all)

    def finite(self, matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which rows are finite, given which rows of `matrix` are."""
        if self.norm is None:
            return self.gather_numbers(matrix.astype(np.float64)) > 0
        good = np.isfinite(self.norm)
        good[slice(None) if self.places is None else self.places] &= matrix
        return good

    def where(self, wanted: NDArray[np.bool_]) -> "ClientRows":
        """The wanted rows alone."""
        if wanted.all():
            return self
        own = self.take_held(wanted)
        matrix = self.matrix[to_device(np.flatnonzero(own), self.matrix.device)]
        places = None if self.places is None else (np.cumsum(wanted) - 1)[self.places[own]]
        length = int(wanted.sum())
        if places is not None and self.world.size == 1 and len(places) == length:
            places = None
        norm = None if self.norm is None else self.norm[wanted]
        inner = None if self.inner is None else self.inner[wanted]
        return ClientRows(matrix, places, length, self.world, norm, inner)

    def without_matrix(self) -> "ClientRows":
        """What is known of the rows, without the matrix, which is large."""
        nowhere = np.zeros(0, dtype=np.int64)
        return replace(self, matrix=self.matrix.new_empty(0, self.matrix.shape[1]), places=nowhere, length=len(self))

    def products(self, others: Tensor, at: slice) -> NDArray[np.float64]:
        """`<G, h>` of some of the rows in this process with the rows h of `others`, and ||h||^2, [2, rows]."""
        squares = others.square().sum(1)
        if self.inner is not None:
            return np.stack([self.inner[at], squares.double().cpu().numpy()])
        products: NDArray[np.float64] = torch.stack([(self.matrix[at] * others).sum(1), squares]).double().cpu().numpy()
        return products

    def distances(self, others: Tensor, factors: NDArray[np.float64], at: slice) -> NDArray[np.float64]:
        """||G - beta h|| of some of the rows in this process, given the rows h of `others` and the factors beta."""
        if self.norm is not None and self.inner is not None:
            squares = others.square().sum(1).double().cpu().numpy()
            left = self.norm[at] ** 2 - 2 * factors * self.inner[at] + factors**2 * squares
            distances: NDArray[np.float64] = np.sqrt(np.maximum(left, 0))
        else:
            scaled = to_device(factors, others)[:, None] * others
            distances = (self.matrix[at] - scaled).norm(dim=1).double().cpu().numpy()
        return distances

    def __add__(self, other: "ClientRows | Tensor") -> "ClientRows":
        """With the rows of the same clients, or a vector, added to each row."""
        return replace(self, matrix=self.matrix + _matrix(other), norm=None, inner=None)

    def __sub__(self, other: "ClientRows | Tensor") -> "ClientRows":
        return replace(self, matrix=self.matrix - _matrix(other), norm=None, inner=None)

    def __truediv__(self, divisors: NDArray[np.floating[Any]]) -> "ClientRows":
        """Each row divided by a number of its own, [rows]."""
        column = to_device(self.take_held(divisors), self.matrix)[:, None]
        norm, inner = (None if known is None else known / divisors for known in (self.norm, self.inner))
        return replace(self, matrix=self.matrix / column, norm=norm, inner=inner)

    def take_held(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of those rows that are in this process, given those of all."""
        return values if self.places is None else values[self.places]


class StoredRows:
    """The stored vectors h of some clients, to compute with: zeros for a client never seen.

    They are read a batch at a time, so that stored vectors are never copied as a whole.
    """

    def __init__(self, store: "ClientVectorStore", client: NDArray[np.int64], places: NDArray[np.int64] | None):
        self.store = store
        self._rows = ClientRows(store.none, places, len(client), store.world)
        self._held = self._rows.take_held(client)
        self._read: tuple[slice, Tensor] | None = None

    def matrix(self) -> ClientRows:
        """All of them at once; what is computed after this reads them no more."""
        if self._read is None:
            self._read = slice(0, len(self._held)), self.store.held_rows(self._held)
        return replace(self._rows, matrix=self._read[1])

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of all of them: coefficients @ rows, [parameters]."""
        own = self._rows.take_held(coefficients)
        total: Tensor | None = None
        for at, rows in self._batches():
            part = to_device(own[at], rows) @ rows
            total = part if total is None else total + part
        if total is None:
            total = self.store.none.new_zeros(self.store.none.shape[1])
        return PartialSum.of(total, self.store.world)

    def products(self, updates: "Updates") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`<G, h>` of each update G, and ||h||^2, which are 0 for a client never seen."""
        found = [np.zeros((2, 0)), *(updates.rows.products(rows, at) for at, rows in self._batches())]
        inner, squares = np.concatenate(found, axis=1)
        return self._rows.gather_numbers(inner), self._rows.gather_numbers(squares)

    def best_beta(self, updates: "Updates") -> NDArray[np.float64]:
        """`<G, h>` / ||h||^2 of each update G: the beta that minimises ||G - beta h||; 0 where h is."""
        inner, squares = self.products(updates)
        return np.divide(inner, squares, out=np.zeros_like(inner), where=squares > 0)

    def distances(self, updates: "Updates", beta: NDArray[np.float64]) -> NDArray[np.float64]:
        """||G - beta h|| of each update G."""
        own, found = self._rows.take_held(beta), [np.zeros(0)]
        for at, rows in self._batches():
            found.append(updates.rows.distances(rows, own[at], at))
        return self._rows.gather_numbers(np.concatenate(found))

    def _batches(self) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the rows that are in this process, with the vectors; a single batch is read once."""
        if self._read is not None:
            yield self._read
            return
        slices = list(batches(len(self._held), self.store.none))
        for at in slices:
            found = at, self.store.held_rows(self._held[at])
            if len(slices) == 1:
                self._read = found
            yield found


def _matrix(rows: "ClientRows | Tensor") -> Tensor:
    return rows.matrix if isinstance(rows, ClientRows) else rows


def batches(rows: int, like: Tensor) -> Iterator[slice]:
    """Slices of rows that are as long as the vector, small enough that stored vectors are never copied as a whole."""
    size = max(_BATCH_BYTES.get(like.device.type, 2**23) // (4 * like.shape[-1]), 1)
    return (slice(begin, begin + size) for begin in range(0, rows, size))
