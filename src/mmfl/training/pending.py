"""What asynchronous training keeps between aggregations: requests that have trained, and weights that others need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.errors import UserError
from mmfl.federation import Federation
from mmfl.local import LocalRule
from mmfl.methods import Method
from mmfl.pace.requests import QueueState
from mmfl.pace.slots import AsynchronousPace, SlotState
from mmfl.tensors import to_device
from mmfl.updates import Trained
from mmfl.updates.world import SINGLE_PROCESS, World

Part = TypeVar("Part")


@dataclass(eq=False)
class TrainedBlock:
    """Requests that trained together, a row for each, in the order in which the engine returned them.

    `flat`, `batch_norm` and `optimiser_state` have the rows that are `here`, those of this process's clients; the last
    two have no columns where there is nothing. `total` are the sums of these rows, `finite` says which are finite.
    """

    serial: NDArray[np.int64]
    client: NDArray[np.int64]
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    here: NDArray[np.int64]
    total: NDArray[np.float32]
    finite: NDArray[np.bool_]
    flat: Tensor
    batch_norm: Tensor
    optimiser_state: Tensor

    @classmethod
    def of(
        cls, serial: NDArray[np.int64], trained: Trained, total: NDArray[np.float32], finite: NDArray[np.bool_]
    ) -> "TrainedBlock":
        """What an engine returned, and the serial number of each of its rows."""
        here = np.arange(len(trained.client)) if trained.here is None else trained.here
        nothing = trained.flat[:, :0]
        batch_norm = nothing if trained.batch_norm is None else trained.batch_norm
        optimiser_state = nothing if trained.optimiser_state is None else trained.optimiser_state
        columns = trained.client, trained.loss, trained.steps, here, total, finite
        return cls(serial, *columns, trained.flat, batch_norm, optimiser_state)

    def where(self, wanted: NDArray[np.bool_], copy: bool = False) -> "TrainedBlock":
        """The wanted rows alone: views where they follow each other, unless a `copy` is asked for."""
        if wanted.all():
            return self
        held = wanted[self.here]
        place = np.flatnonzero(held)
        follow = not copy and len(place) > 0 and place[-1] - place[0] < len(place)
        rows: Any = slice(place[0], place[-1] + 1) if follow else to_device(place, self.flat.device)
        changed: dict[str, Any] = {name: getattr(self, name)[wanted] for name in _COLUMNS}
        changed |= {name: getattr(self, name)[rows] for name in _MATRICES}
        changed |= {"total": self.total[held], "finite": self.finite[held]}
        return replace(self, here=(np.cumsum(wanted) - 1)[self.here[held]], **changed)

    @classmethod
    def join(cls, blocks: Sequence["TrainedBlock"]) -> "TrainedBlock":
        """All rows, one block after another."""
        if len(blocks) == 1:
            return blocks[0]
        first = np.cumsum([0, *(len(each.serial) for each in blocks)])
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in blocks]) for name in (*_COLUMNS, "total", "finite")
        }
        joined |= {name: torch.cat([getattr(each, name) for each in blocks]) for name in _MATRICES}
        here = [each.here + begin for each, begin in zip(blocks, first, strict=False)]
        return cls(here=np.concatenate(here), **joined)

    def trained(self, world: World) -> Trained:
        """As an engine returns it."""
        return Trained(
            self.client,
            self.flat,
            self.loss,
            self.steps,
            None if world.size == 1 else self.here,
            world,
            batch_norm=self.batch_norm if self.batch_norm.shape[1] else None,
            optimiser_state=self.optimiser_state if self.optimiser_state.shape[1] else None,
        )


_COLUMNS = ("serial", "client", "loss", "steps")
_MATRICES = ("flat", "batch_norm", "optimiser_state")


@dataclass(eq=False)
class TrainedRequests:
    """The requests of a task that have trained and are not aggregated yet, in blocks that trained together.

    A block is kept as it is while at least a quarter of its rows are still to be taken; then these are copied.
    """

    blocks: list[TrainedBlock] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world: World = SINGLE_PROCESS
        self.blocks = [_as(TrainedBlock, block) for block in self.blocks]
        self._left = [np.ones(len(block.serial), dtype=bool) for block in self.blocks]
        self._place: dict[int, tuple[int, int]] = {}
        self._find()

    def __contains__(self, serial: int) -> bool:
        return serial in self._place

    def add(self, block: TrainedBlock) -> None:
        """Requests that have just trained."""
        self.blocks.append(block)
        self._left.append(np.ones(len(block.serial), dtype=bool))
        number = len(self.blocks) - 1
        self._place.update({serial: (number, row) for row, serial in enumerate(block.serial.tolist())})

    def take(self, serials: Sequence[int]) -> TrainedBlock:
        """Removes some requests, and returns them in the order in which they trained."""
        found = self.peek(serials)
        for serial in serials:
            number, row = self._place.pop(serial)
            self._left[number][row] = False
        if any(4 * left.sum() < len(left) for left in self._left):
            self._compact()
        return found

    def peek(self, serials: Sequence[int]) -> TrainedBlock:
        """Some requests, which stay."""
        rows: dict[int, list[int]] = {}
        for serial in serials:
            number, row = self._place[serial]
            rows.setdefault(number, []).append(row)
        found = []
        for number in sorted(rows):
            marks = np.zeros(len(self._left[number]), dtype=bool)
            marks[rows[number]] = True
            found.append(self.blocks[number].where(marks))
        return TrainedBlock.join(found)

    def clear(self) -> None:
        """Forgets all of them."""
        self.blocks, self._left, self._place = [], [], {}

    def saved(self) -> "TrainedRequests":
        """What a checkpoint holds: in every process, the rows of its own clients that are left."""
        pairs = zip(self.blocks, self._left, strict=True)
        return TrainedRequests([block.where(left) for block, left in pairs if left.any()])

    def _compact(self) -> None:
        pairs = [(block, left) for block, left in zip(self.blocks, self._left, strict=True) if left.any()]
        few = [4 * left.sum() < len(left) for _, left in pairs]
        self.blocks = [
            block.where(left, copy=True) if f else block for f, (block, left) in zip(few, pairs, strict=True)
        ]
        self._left = [left[left] if f else left for f, (_, left) in zip(few, pairs, strict=True)]
        self._find()

    def _find(self) -> None:
        """Notes where each request is: the number of its block, and its row."""
        self._place = {
            serial: (number, row)
            for number, (block, left) in enumerate(zip(self.blocks, self._left, strict=True))
            for row, serial in enumerate(block.serial.tolist())
            if left[row]
        }

    def adopt(self, restored: Sequence[Any]) -> "TrainedRequests":
        """The requests of a checkpoint, as one or several processes kept them; each takes the rows of its clients."""
        parts = zip(*(each.blocks for each in restored), strict=True)
        adopted = TrainedRequests([self._own(together) for together in parts])
        adopted.world = self.world
        return adopted

    def _own(self, parts: Sequence[TrainedBlock]) -> TrainedBlock:
        """The rows of a block that belong to this process, of those that all processes had."""
        first = parts[0]
        here = np.concatenate([each.here for each in parts])
        owned = self.world.owns(first.client[here]) if self.world.size > 1 else np.ones(len(here), dtype=bool)
        order = np.flatnonzero(owned)[np.argsort(here[owned], kind="stable")]
        rows = torch.from_numpy(order)
        own: dict[str, Any] = {name: getattr(first, name).copy() for name in _COLUMNS}
        own |= {name: np.concatenate([getattr(each, name) for each in parts])[order] for name in ("total", "finite")}
        own |= {name: torch.cat([getattr(each, name) for each in parts])[rows] for name in _MATRICES}
        return TrainedBlock(here=here[order], **own)


@dataclass(eq=False)
class OldVersion:
    """A version of a task that clients began with, after a newer one was made: its weights, the statistics of batch
    norm that went with them, and what the aggregation's memory stood for; empty where that is not kept."""

    task: int
    version: int
    weights: Tensor
    batch_norm: Tensor
    memory: Tensor


@dataclass(eq=False)
class OldVersions:
    """All old versions that somebody still needs."""

    kept: list[OldVersion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = [_as(OldVersion, each) for each in self.kept]
        self._by_number = {(each.task, each.version): each for each in self.kept}

    def __getitem__(self, number: tuple[int, int]) -> OldVersion:
        return self._by_number[number]

    def add(self, old: OldVersion) -> None:
        """A version that is old from now on."""
        self.kept.append(old)
        self._by_number[old.task, old.version] = old

    def keep(self, needed: Callable[[int, int], bool]) -> None:
        """Forgets the versions of tasks that are not needed any more."""
        self.kept = [each for each in self.kept if needed(each.task, each.version)]
        self.__post_init__()

    def adopt(self, restored: Sequence[Any]) -> "OldVersions":
        """Those of a checkpoint, which all processes have alike."""
        return OldVersions(restored[0].kept)


def _as(kind: type[Part], value: Any) -> Part:
    """A dataclass, or its fields as a checkpoint holds them."""
    return value if isinstance(value, kind) else kind(**value)


@dataclass(eq=False)
class RequestState:
    """What asynchronous training remembers besides weights: requests, what the pace decided, the versions that clients
    still train from, and the trainings of each task that wait to be aggregated."""

    queue: QueueState
    pace: SlotState
    old: OldVersions
    trained: list[TrainedRequests]

    @classmethod
    def start(
        cls, method: Method, federation: Federation, weights: Sequence[Tensor], rate: float, world: World
    ) -> "RequestState | None":
        """Before the first request; None where the method has rounds."""
        pace, clients, tasks = method.pace, federation.clients, len(federation.tasks)
        if not isinstance(pace, AsynchronousPace):
            return None
        if type(method.local).start is not LocalRule.start:
            raise UserError(
                f"method '{method.name}': local rule {type(method.local).__name__} remembers what clients of a round "
                f"did, and pace '{pace.name}' has no rounds; expected a local rule without memory, such as 'sgd'."
            )
        trained = [TrainedRequests() for _ in range(tasks)]
        for each in trained:
            each.world = world
        trainings = max(1, round(rate * float(federation.capacity.sum())))
        return cls(
            QueueState.start(clients, tasks), pace.start_slots(federation, weights, trainings), OldVersions(), trained
        )

    def to(self, device: torch.device) -> None:
        """Moves what was restored from a checkpoint to a device."""
        blocks = [block for trained in self.trained for block in trained.blocks]
        for names, parts in ((_MATRICES, blocks), (("weights", "batch_norm", "memory"), self.old.kept)):
            for each in parts:
                for name in names:
                    setattr(each, name, getattr(each, name).to(device))
