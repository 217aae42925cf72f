"""Placed: data on a device, moved there once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.data.dataset import Dataset

_MOST_BYTES = 1 << 32  # of inputs in a pool


@dataclass(frozen=True, eq=False)
class Pool:
    """Training examples of several data sets one after another: inputs, targets, and where those of each begin."""

    x: Tensor
    y: Tensor
    begins: dict[Dataset, int]

    def grown(self, data: Sequence[Dataset], device: torch.device) -> "Pool":
        """A pool that has these as well."""
        new = [each for each in dict.fromkeys(data) if each not in self.begins]
        x, y = (
            torch.cat([pooled, *(tensor.to(device) for tensor in tensors)])
            for pooled, tensors in ((self.x, [each.x for each in new]), (self.y, [each.y for each in new]))
        )
        begins, end = dict(self.begins), len(self.x)
        for each in new:
            begins[each] = end
            end += len(each.x)
        return Pool(x, y, begins)


class Placed:
    """Base tensors of data sets where a device can use them.

    On a GPU, training examples of several tasks that train together lie in one pool, so that they are gathered as one.
    On a CPU they are where they have always been.
    """

    def __init__(self, device: torch.device, pooling: bool | None = None):
        self.device = device
        self.pooling = device.type != "cpu" if pooling is None else pooling
        self._alone: dict[int, tuple[Tensor, Tensor]] = {}
        self._pools: dict[tuple[object, ...], Pool] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the device."""
        if id(tensor) not in self._alone:
            self._alone[id(tensor)] = (tensor, tensor.to(self.device))
        return self._alone[id(tensor)][1]

    def pool(self, data: Sequence[Dataset]) -> Pool | None:
        """All training examples of these data sets; None where they cannot lie together."""
        first = data[0]
        if all(each.x is first.x and each.y is first.y for each in data):
            return Pool(self(first.x), self(first.y), dict.fromkeys(data, 0))
        distinct = dict.fromkeys(data)
        kinds = {(each.x.shape[1:], each.x.dtype, each.y.shape[1:], each.y.dtype) for each in distinct}
        shared = len({id(each.x) for each in distinct}) < len(distinct)  # targets alone differ: one copy will do
        if not self.pooling or len(kinds) > 1 or shared:
            return None
        (kind,) = kinds
        before = self._pools.get(kind) or Pool(
            first.x.new_empty(0, *first.x.shape[1:], device=self.device),
            first.y.new_empty(0, *first.y.shape[1:], device=self.device),
            {},
        )
        lacking = sum(each.x.nbytes for each in distinct if each not in before.begins)
        if before.x.nbytes + lacking > _MOST_BYTES:
            return None
        if lacking:
            after = self._pools[kind] = before.grown(data, self.device)
            for each, begin in after.begins.items():
                for tensor, pooled in ((each.x, after.x), (each.y, after.y)):
                    self._alone[id(tensor)] = tensor, pooled[begin : begin + len(tensor)]
        return self._pools[kind]
