"""DeviceData: data sets on a device, moved there once."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmfl.data.dataset import Dataset
from mmfl.data.lazy import Rows, is_lazy, join, read
from mmfl.data.structure import Structure, leaves, length, map_leaves, select
from mmfl.engine.architecture import shape_of_examples
from mmfl.tensors import to_device

_MAX_POOL_BYTES = 1 << 32  # of inputs
_AHEAD = 2  # requests that are read or waiting; no more examples than theirs are in memory


class Pool(NamedTuple):
    """Training examples of several data sets in one structure: inputs, targets, and the first row of each data set."""

    x: Structure
    y: Structure
    first_row: dict[Dataset, int]

    @classmethod
    def of(cls, datasets: Sequence[Dataset], x: Structure, y: Structure) -> "Pool":
        """The examples of these data sets, which lie one after another in `x` and `y`."""
        begins = itertools.accumulate((length(each.x) for each in datasets), initial=0)
        return cls(x, y, dict(zip(datasets, begins, strict=False)))


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
        for examples in _read_ahead(structure, requests):
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
        distinct = list(dict.fromkeys(datasets))
        first = distinct[0]
        if all(each.x is first.x and each.y is first.y for each in distinct):
            x, y = self((first.x, first.y))
            return Pool(x, y, dict.fromkeys(distinct, 0))
        if any(is_lazy((each.x, each.y)) for each in distinct):
            return Pool.of(distinct, *join(*((each.x, each.y) for each in distinct)))
        kind = shape_of_examples((first.x, first.y))
        unlike = any(shape_of_examples((each.x, each.y)) != kind for each in distinct)
        share_inputs = len({id(leaves(each.x)[0]) for each in distinct}) < len(distinct)  # a pool would copy them
        if not self.pooling or unlike or share_inputs:
            return None
        members = list(self._pools[kind].first_row) if kind in self._pools else []
        if all(each in members for each in distinct):
            return self._pools[kind]
        members += [each for each in distinct if each not in members]
        if sum(leaf.nbytes for each in members for leaf in leaves(each.x)) > _MAX_POOL_BYTES:
            return None
        examples = map_leaves(lambda *parts: torch.cat(parts), *(self((each.x, each.y)) for each in members))
        pool = self._pools[kind] = Pool.of(members, *examples)
        for each, begin in pool.first_row.items():
            for tensor, whole in zip(leaves((each.x, each.y)), leaves(examples), strict=True):
                self._tensors[tensor] = whole[begin : begin + len(tensor)]
        return pool


def _read_ahead(structure: Structure, requests: Iterable[Rows]) -> Iterator[Structure]:
    """The examples of each request, as tensors on the CPU: while a step runs, a thread reads those of the next steps.
    Equal requests one after another are read once."""
    waiting: deque[Future[Structure]] = deque()
    last: Rows | None = None
    pool = ThreadPoolExecutor(1, "mmfl-read-ahead")
    try:
        for rows in requests:
            repeated = bool(waiting) and last is not None and np.array_equal(rows, last)
            waiting.append(waiting[-1] if repeated else pool.submit(read, structure, rows))
            last = rows
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
