"""ClientVectorStore: a flat vector for every client ever seen, for rules that remember.

A round reads and writes the vectors of its own clients only, so its cost does not depend on how many are stored.
`StorageOptions` says where they are (beside the weights, in host memory or in a file) and in which precision.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.errors import UserError, nearest
from mmfl.tensors import walk
from mmfl.updates.encoding import ENCODINGS, Encoding
from mmfl.updates.rows import ClientRows, StoredRows
from mmfl.updates.world import SINGLE_PROCESS, World

# The most bytes in one block. An open file counts against a limit of the system, so those are fewer and larger.
_BLOCK = {"device": 2**25, "host": 2**25, "file": 2**30}
_FIRST_ROWS = 16


@dataclass(frozen=True)
class StorageOptions:
    """Where stored vectors live, and in which precision.

    - `where`: "device" (beside the weights), "host" (the computer's memory) or "file" (mapped from disk, for more than
      memory holds; the file has no name and is gone with the process).
    - `precision`: "float32"; "float16" for half the space (what lies beyond its range becomes its largest value); or
      "8-bit", "4-bit", "3-bit" (a tenth of the space) and "2-bit", in which 256 numbers share a scale.
    - `folder`: where files go; None is the system's temporary folder, which may itself be in memory.

    >>> stored = StorageOptions(precision="float16").start(clients=1000, weights=torch.zeros(3))
    >>> stored.put(np.array([7, 400]), torch.tensor([[1.0, 2.0, 1e9], [0.1, 0.0, 0.0]]))
    tensor([[1.0000e+00, 2.0000e+00, 6.5504e+04], [9.9976e-02, 0.0000e+00, 0.0000e+00]])
    >>> stored.rows(np.array([8, 7]))
    tensor([[0.0000e+00, 0.0000e+00, 0.0000e+00], [1.0000e+00, 2.0000e+00, 6.5504e+04]])
    """

    where: str = "device"
    precision: str = "float32"
    folder: str | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (("where", self.where, _BLOCK), ("precision", self.precision, ENCODINGS)):
            if not isinstance(value, str) or value not in choices:
                raise UserError(f"stored vectors: unknown {name} '{value}': {nearest(str(value), choices)}")

    @classmethod
    def of(cls, setting: "StorageOptions | Mapping[str, Any] | None") -> "StorageOptions":
        """The options in a table, or the setting as it is; the defaults for None."""
        if isinstance(setting, StorageOptions):
            return setting
        if not isinstance(setting, Mapping | None):
            raise UserError(f'stored vectors: keep is {setting!r}; expected a table such as {{ where = "host" }}.')
        known = {field.name for field in fields(cls)}
        unknown = next((key for key in setting or {} if key not in known), None)
        if unknown is not None:
            raise UserError(f"stored vectors: unknown option '{unknown}': {nearest(unknown, known)}")
        return cls(**(setting or {}))

    def start(self, clients: int, weights: Tensor) -> "ClientVectorStore":
        """Nothing stored yet; `weights` [parameters] gives the length of the vectors and the device they come from."""
        if self.where == "file":
            try:
                tempfile.TemporaryFile(dir=self.folder).close()
            except OSError as error:
                raise UserError(
                    f"stored vectors: cannot write to folder '{self.folder or tempfile.gettempdir()}': "
                    f"{error.strerror}."
                ) from None
        none = torch.empty(0, weights.shape[-1], dtype=torch.float32, device=weights.device)
        return ClientVectorStore(np.full(clients, -1, dtype=np.int64), [], np.zeros(1, dtype=np.int64), 0, none, self)

    @property
    def encoding(self) -> Encoding:
        """How vectors of this precision are stored."""
        return ENCODINGS[self.precision]

    def block(self, rows: int, none: Tensor) -> Tensor:
        """Memory for this many vectors, all zero."""
        shape, dtype = (rows, self.encoding.width(none.shape[1])), self.encoding.dtype
        if self.where == "file":
            return _map_file(self.folder, shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=none.device if self.where == "device" else "cpu")


@dataclass(eq=False)
class ClientVectorStore:
    """The vectors of all clients seen so far, [parameters] each, changed by `put` alone.

    Where several processes share a run, each holds the vectors of its own clients. Rules need not care: all processes
    ask for the same clients, and each gets the vectors of all of them.

    - `slot` [clients]: the row of each client, -1 for one whose vector is not held here.
    - `blocks`: the rows. A new client takes the next free one; a full block is followed by another and never moves.
    - `starts` [blocks + 1]: the first row of each block, and of the one that comes next.
    - `count`: rows in use.
    - `none` [0, parameters]: no vectors, on the device of the weights.
    """

    slot: NDArray[np.int64]
    blocks: list[Tensor]
    starts: NDArray[np.int64]
    count: int
    none: Tensor
    keep: StorageOptions

    def __post_init__(self) -> None:
        self.world: World = SINGLE_PROCESS
        self._seen: NDArray[np.bool_] = self.slot >= 0

    def rows(self, client: NDArray[np.int64]) -> Tensor:
        """The vectors of these clients, [len(client), parameters], in float32 beside the weights; zeros if unseen."""
        return self.world.sum(self.held_rows(client))

    def of(self, client: NDArray[np.int64]) -> StoredRows:
        """The vectors of these clients as rows to compute with; they are read when needed, not all at once."""
        places = None if self.world.size == 1 else np.flatnonzero(self.world.owns(client))
        return StoredRows(self, client, places)

    def put(self, client: NDArray[np.int64], rows: Tensor | ClientRows) -> Tensor:
        """Stores `rows` [len(client), parameters] in place of what these clients had; no client may occur twice.

        Returns the rows of this process's clients as they are read from now on, so that a sum kept beside them adds up
        exactly.
        """
        if not isinstance(rows, ClientRows):
            owned = np.flatnonzero(self.world.owns(client))
            own = rows if self.world.size == 1 else rows[torch.from_numpy(owned).to(rows.device)]
            rows = ClientRows(own, None if self.world.size == 1 else owned, len(client), self.world)
        self._seen[client] = True
        return self._put(rows.take_held(client), rows.matrix)

    def combine(self, client: NDArray[np.int64], coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of these clients' vectors, [parameters]: coefficients @ rows."""
        return self.of(client).combine(coefficients)

    def held_rows(self, client: NDArray[np.int64]) -> Tensor:
        """Like `rows`, but zeros for clients whose vectors another process holds."""
        return self.keep.encoding.decode(self._read(client), self.length)

    def has(self, client: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these clients have a vector, [len(client)]."""
        return self._seen[client]

    def holds(self, client: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these clients' vectors are in this process, [len(client)]."""
        holds: NDArray[np.bool_] = self.slot[client] >= 0
        return holds

    def batches(self, size: int = 64) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """All that is stored, as (client, rows) of at most `size` clients, in the order they were first stored."""
        for client in self._stored_clients(size):
            yield client, self.held_rows(client)

    def __len__(self) -> int:
        return self.count

    @property
    def length(self) -> int:
        """Numbers in a vector."""
        return self.none.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held for vectors, in memory or on disk, room for the next clients included."""
        return sum(block.nbytes for block in self.blocks)

    def saved(self) -> "ClientVectorStore":
        """What a checkpoint needs: the same without the rows not yet in use."""
        used = np.maximum(self.count - self.starts[:-1], 0).tolist()
        return replace(self, blocks=[block[:rows] for block, rows in zip(self.blocks, used, strict=True)])

    def adopt(self, restored: Sequence["ClientVectorStore"]) -> "ClientVectorStore":
        """The vectors of a checkpoint, as one or several processes kept them; each process takes those of its own
        clients, in blocks of the same sizes if as many processes had them."""
        adopted = self.keep.start(len(self.slot), self.none)
        adopted.world = self.world
        if len(restored) == self.world.size:
            adopted.starts = restored[self.world.rank].starts.copy()
            adopted.blocks = [self.keep.block(rows, self.none) for rows in np.diff(adopted.starts).tolist()]
        for store in restored:
            alike = store.keep.precision == self.keep.precision  # rounding twice could differ from rounding once
            for client in store._stored_clients(64):
                owned = client[self.world.owns(client)]
                adopted._seen[client] = True
                adopted._write(owned, store._read(owned) if alike else self._encode(store.held_rows(owned)))
        return adopted

    def _put(self, client: NDArray[np.int64], rows: Tensor) -> Tensor:
        if rows.shape != (len(client), self.none.shape[1]):
            raise ValueError(f"rows are {list(rows.shape)}; expected {[len(client), self.none.shape[1]]}.")
        if len(np.unique(client)) < len(client):
            raise ValueError("a client occurs twice among those to store.")
        encoded = self._encode(rows)
        self._write(client, encoded)
        return self.keep.encoding.decode(encoded, self.length)

    def _encode(self, rows: Tensor) -> Tensor:
        return self.keep.encoding.encode(rows.detach().to(self.none.device))

    def _write(self, client: NDArray[np.int64], encoded: Tensor) -> None:
        """Stores encoded vectors; a new client takes the next free row."""
        new = client[self.slot[client] < 0]
        self._make_room(self.count + len(new))
        self.slot[new] = self.count + np.arange(len(new))
        self.count += len(new)
        for block, inside, place in self._pieces(self.slot[client]):
            block.index_copy_(0, inside.to(block.device), encoded[place.to(encoded.device)].to(block.device))

    def _read(self, client: NDArray[np.int64]) -> Tensor:
        """What is stored of these clients, encoded, on the device of the weights; zeros for those not held here."""
        encoding, device = self.keep.encoding, self.none.device
        found = torch.zeros(len(client), encoding.width(self.length), dtype=encoding.dtype, device=device)
        for block, inside, place in self._pieces(self.slot[client]):
            found.index_copy_(0, place.to(device), block.index_select(0, inside.to(block.device)).to(device))
        return found

    def _stored_clients(self, size: int) -> Iterator[NDArray[np.int64]]:
        """The clients whose vectors are here, at most `size` at a time, in the order they were first stored."""
        seen = np.flatnonzero(self.slot >= 0)
        seen = seen[np.argsort(self.slot[seen])]
        return (seen[first : first + size] for first in range(0, len(seen), size))

    def _make_room(self, needed: int) -> None:
        """Adds blocks; each doubles the room, until one is as large as a block may be."""
        row = self.keep.encoding.width(self.length) * self.keep.encoding.dtype.itemsize
        largest = max(_BLOCK[self.keep.where] // row, 1)
        while (room := int(self.starts[-1])) < needed:
            rows = min(max(needed - room, room, _FIRST_ROWS), largest, len(self.slot) - room)
            self.blocks.append(self.keep.block(rows, self.none))
            self.starts = np.append(self.starts, room + rows)

    def _pieces(self, slot: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Every block that holds one of these rows, with their numbers inside it and their places in `slot`."""
        place = np.flatnonzero(slot >= 0)
        block = np.searchsorted(self.starts, slot[place], side="right") - 1
        order = np.argsort(block, kind="stable")
        touched, first = np.unique(block[order], return_index=True)
        for number, part in zip(touched, np.split(place[order], first[1:]), strict=False):
            yield self.blocks[number], torch.from_numpy(slot[part] - self.starts[number]), torch.from_numpy(part)


def set_world(state: Any, world: World) -> None:
    """Tells all stores in a rule's state which processes share the run."""
    for part in walk(state):
        if isinstance(part, ClientVectorStore):
            part.world = world


def _map_file(folder: str | None, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Zeros in a file without a name."""
    size = shape[0] * shape[1] * dtype.itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and the end of the process at a write
                os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_numpy(np.memmap(file, str(dtype).removeprefix("torch."), "r+", shape=shape))
    except OSError as error:
        raise UserError(
            f"stored vectors: no room for {size:,} more bytes in folder '{folder or tempfile.gettempdir()}': "
            f"{error.strerror}."
        ) from None
