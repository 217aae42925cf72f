"""DeviceData: data sets on a device, moved there once."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.data.dataset import Dataset
from mmfl.data.lazy import Rows, is_lazy, join
from mmfl.data.structure import Structure, leaves, length, map_leaves, rows, select
from mmfl.engine.read_ahead import read_ahead
from mmfl.tensors import to_device

_MAX_POOL_BYTES = 1 << 32  # of inputs


@dataclass(frozen=True, eq=False)
class Pool:
    """Training examples of several data sets in one structure: inputs, targets, and the first row of each data set."""

    x: Structure
    y: Structure
    first_row: dict[Dataset, int]

    def extend(self, datasets: Sequence[Dataset], device: torch.device) -> "Pool":
        """A new pool with these data sets added."""
        new = [each for each in dict.fromkeys(datasets) if each not in self.first_row]
        begins = itertools.accumulate((length(each.x) for each in new), initial=length(self.x))

        def extend(*leaves: Tensor) -> Tensor:
            return torch.cat([leaf.to(device) for leaf in leaves])

        return Pool(
            map_leaves(extend, self.x, *(each.x for each in new)),
            map_leaves(extend, self.y, *(each.y for each in new)),
            self.first_row | dict(zip(new, begins, strict=False)),
        )


class DeviceData:
    """The tensors of data sets on a device.

    On a GPU, training examples of tasks that train together lie in one pool, so that one operation gathers a batch of
    all of them. On a CPU the tensors are used where they are.
    """

    def __init__(self, device: torch.device, pooling: bool | None = None):
        self.device = device
        self.pooling = device.type != "cpu" if pooling is None else pooling
        self._tensors: dict[Tensor, Tensor] = {}
        self._pools: dict[str, Pool] = {}

    def __call__(self, structure: Structure) -> Structure:
        """The structure on the device; one that is read when needed stays where it is."""
        return structure if is_lazy(structure) else map_leaves(self._place, structure)

    def read(self, structure: Structure, requests: Iterable[Rows]) -> Iterator[Structure]:
        """The examples of each request on the device, read ahead."""
        for examples in read_ahead(structure, requests):
            yield map_leaves(lambda leaf: leaf.to(self.device), examples)

    def chunks(self, structure: Structure, index: Rows, sizes: int | list[int]) -> Iterator[Structure]:
        """The examples of an index, some at a time: so many, or these numbers of them."""
        if is_lazy(structure):
            yield from self.read(structure, (part.numpy() for part in torch.from_numpy(index).split(sizes)))
        else:
            placed = self(structure)
            yield from (select(placed, part) for part in to_device(index, self.device).split(sizes))

    def _place(self, tensor: Tensor) -> Tensor:
        if tensor not in self._tensors:
            self._tensors[tensor] = tensor.to(self.device)
        return self._tensors[tensor]

    def pool(self, datasets: Sequence[Dataset]) -> Pool | None:
        """All training examples of these data sets; None where they cannot be pooled."""
        first = datasets[0]
        if all(each.x is first.x and each.y is first.y for each in datasets):
            x, y = self((first.x, first.y))
            return Pool(x, y, dict.fromkeys(datasets, 0))
        distinct = dict.fromkeys(datasets)
        if any(is_lazy((each.x, each.y)) for each in distinct):
            begins = itertools.accumulate((length(each.x) for each in distinct), initial=0)
            x, y = join(*((each.x, each.y) for each in distinct))
            return Pool(x, y, dict(zip(distinct, begins, strict=False)))
        kinds = {_kind(each) for each in distinct}
        share_inputs = len({id(leaves(each.x)[0]) for each in distinct}) < len(distinct)  # a pool would copy them
        if not self.pooling or len(kinds) > 1 or share_inputs:
            return None
        (kind,) = kinds
        before = self._pools.get(kind) or Pool(rows(first.x, slice(0)), rows(first.y, slice(0)), {})
        missing_bytes = sum(_bytes(each.x) for each in distinct if each not in before.first_row)
        if _bytes(before.x) + missing_bytes > _MAX_POOL_BYTES:
            return None
        if missing_bytes:
            after = self._pools[kind] = before.extend(datasets, self.device)
            for each, begin in after.first_row.items():
                own, pooled = leaves((each.x, each.y)), leaves((after.x, after.y))
                for tensor, whole in zip(own, pooled, strict=True):
                    self._tensors[tensor] = whole[begin : begin + len(tensor)]
        return self._pools[kind]


def _kind(data: Dataset) -> str:
    """Equal for data sets whose examples have the same structure, shapes and types."""
    return str(map_leaves(lambda leaf: f"{tuple(leaf.shape[1:])}{leaf.dtype}", (data.x, data.y)))


def _bytes(structure: Structure) -> int:
    return sum(leaf.nbytes for leaf in leaves(structure))
