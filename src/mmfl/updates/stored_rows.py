"""StoredRows: the stored vectors of some clients, to compute with."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.tensors import to_device
from mmfl.updates.partial_sum import PartialSum
from mmfl.updates.rows import ClientRows, batches

if TYPE_CHECKING:
    from mmfl.updates.store import ClientVectorStore
    from mmfl.updates.updates import Updates


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

    def best_beta(self, updates: "Updates") -> NDArray[np.float64]:
        """`<G, h>` / ||h||^2 of each update G: the beta that minimises ||G - beta h||; 0 where h is."""
        found = [np.zeros(0)]
        for at, rows in self._batches():
            products = updates.rows.inner_products(rows, at)
            squares = rows.square().sum(1).double().cpu().numpy()
            found.append(np.divide(products, squares, out=np.zeros_like(products), where=squares > 0))
        return self._rows.gather_numbers(np.concatenate(found))

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
