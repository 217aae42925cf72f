"""DeviceData: data sets on a device, moved there once."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.data.dataset import Dataset

_MAX_POOL_BYTES = 1 << 32  # of inputs


@dataclass(frozen=True, eq=False)
class Pool:
    """Training examples of several data sets in one tensor: inputs, targets, and the first row of each data set."""

    x: Tensor
    y: Tensor
    first_row: dict[Dataset, int]

    def extend(self, datasets: Sequence[Dataset], device: torch.device) -> "Pool":
        """A new pool with these data sets added."""
        new = [each for each in dict.fromkeys(datasets) if each not in self.first_row]
        begins = itertools.accumulate((len(each.x) for each in new), initial=len(self.x))
        return Pool(
            torch.cat([self.x, *(each.x.to(device) for each in new)]),
            torch.cat([self.y, *(each.y.to(device) for each in new)]),
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
        self._pools: dict[tuple[object, ...], Pool] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the device."""
        if tensor not in self._tensors:
            self._tensors[tensor] = tensor.to(self.device)
        return self._tensors[tensor]

    def pool(self, datasets: Sequence[Dataset]) -> Pool | None:
        """All training examples of these data sets; None where they cannot be pooled."""
        first = datasets[0]
        if all(each.x is first.x and each.y is first.y for each in datasets):
            return Pool(self(first.x), self(first.y), dict.fromkeys(datasets, 0))
        distinct = dict.fromkeys(datasets)
        kinds = {(each.x.shape[1:], each.x.dtype, each.y.shape[1:], each.y.dtype) for each in distinct}
        share_inputs = len({id(each.x) for each in distinct}) < len(distinct)  # a pool would copy them
        if not self.pooling or len(kinds) > 1 or share_inputs:
            return None
        (kind,) = kinds
        before = self._pools.get(kind) or Pool(first.x[:0].to(self.device), first.y[:0].to(self.device), {})
        missing_bytes = sum(each.x.nbytes for each in distinct if each not in before.first_row)
        if before.x.nbytes + missing_bytes > _MAX_POOL_BYTES:
            return None
        if missing_bytes:
            after = self._pools[kind] = before.extend(datasets, self.device)
            for each, begin in after.first_row.items():
                for tensor, pooled in ((each.x, after.x), (each.y, after.y)):
                    self._tensors[tensor] = pooled[begin : begin + len(tensor)]
        return self._pools[kind]
