"""Losses of several tasks or replicas of one architecture as one forward pass, each with weights of its own.

A GPU takes as long to be told of a pass over a few thousand examples as to make it: then one pass is better than many,
and a recorded one better still.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmfl.data.dataset import as_inputs
from mmfl.engine.architecture import Architecture
from mmfl.engine.base import Workload
from mmfl.engine.cohort import Cohort
from mmfl.engine.gpu.lanes import Lane
from mmfl.engine.gpu.recorded import Recorder
from mmfl.engine.placed import Placed
from mmfl.engine.precision import to_float32
from mmfl.engine.products import Factors
from mmfl.federation.objectives import per_example
from mmfl.tensors import to_device

_WIDTH = 64  # recorded passes are a multiple of it wide


@torch.no_grad()
def losses_together(
    architecture: Architecture,
    workloads: Sequence[Workload],
    placed: Placed,
    most: int,
    recorder: Recorder | None = None,
) -> Tensor:
    """Mean losses of the workloads' clients, one workload after the other; at most so many examples at once."""
    weights = torch.stack([each.weights for each in workloads])
    longest = max(int(each.federation.sizes[each.client, each.task].sum()) for each in workloads)
    shape = len(workloads), -(-longest // _WIDTH) * _WIDTH
    if recorder and shape[0] * shape[1] <= most and recorder.takes(architecture, shape[0] * shape[1]):
        lane = recorder.lane(shape[1])
        with torch.cuda.device_of(weights), lane.taken():
            played = recorder.kept(
                (architecture, "losses", *shape),
                lambda: _Pass(architecture, weights, Examples(workloads, shape[1], placed), lane),
            )
            means = played(weights, workloads, placed)
        lane.join()
        return means
    examples = Examples(workloads, shape[1], placed)
    parts = examples.index.split(max(1, most // len(workloads)), 1)
    return examples.means(torch.cat([_values(architecture, weights, *examples.at(rows)) for rows in parts], 1))


class Examples:
    """Examples of the workloads' clients: a row for each workload, all of one length, filled up with their last one.

    What is added makes a segment of its own, and is dropped.
    """

    def __init__(self, workloads: Sequence[Workload], length: int, placed: Placed):
        self._placed, device = placed, placed.device
        self._whose = [(each.federation, each.task, each.client) for each in workloads]
        self._data = [each.federation.tasks[each.task].data for each in workloads]
        shards = [each.federation.shards[each.task].only(each.client) for each in workloads]
        self.index = to_device(
            np.stack([np.pad(each.index, (0, length - len(each.index)), "edge") for each in shards]), device
        )
        segments = [np.append(each.sizes, length - len(each.index)) for each in shards]
        kept = np.concatenate([np.arange(len(each)) < len(each) - 1 for each in segments])
        self._segments, self._kept = (
            to_device(np.concatenate(segments), device),
            to_device(np.flatnonzero(kept), device),
        )

    def are_of(self, workloads: Sequence[Workload]) -> bool:
        """Whether the workloads' examples are these."""
        return all(
            federation is each.federation and task == each.task and np.array_equal(client, each.client)
            for (federation, task, client), each in zip(self._whose, workloads, strict=True)
        )

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets [workloads, rows, ...]."""
        bases = [data.x for data in self._data], [data.y for data in self._data]
        x, y = (
            torch.stack([self._placed(b).index_select(0, r) for b, r in zip(base, rows, strict=True)]) for base in bases
        )
        return as_inputs(x), y

    def means(self, values: Tensor) -> Tensor:
        """The mean of each client's values [workloads, length]."""
        means = torch.segment_reduce(values.double().flatten(), "mean", lengths=self._segments, unsafe=True)
        return means[self._kept]


def _values(architecture: Architecture, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The loss of every example, [workloads, examples]."""
    cohort = Cohort(architecture, weights.device)
    if cohort.operators:
        cohort.operators.factors = Factors(())
    architecture.bare.module.eval()
    try:
        outputs = to_float32(cohort.forward(tuple(architecture.layout.views(weights)), x))
        return per_example(architecture.loss(outputs.flatten(0, 1), y.flatten(0, 1))).view(y.shape[:2])
    finally:
        architecture.bare.clear()
        architecture.bare.module.train()


class _Pass:
    """A recorded pass: the tensors that it always reads and writes, and how to make it."""

    def __init__(self, architecture: Architecture, weights: Tensor, examples: Examples, lane: Lane):
        self._examples, self._weights = examples, weights.clone()
        self._x, self._y = examples.at(examples.index)
        self._losses = weights.new_empty(self._y.shape[:2])

        def once() -> None:
            self._losses.copy_(_values(architecture, self._weights, self._x, self._y))

        self._play = lane.record(once)

    def __call__(self, weights: Tensor, workloads: Sequence[Workload], placed: Placed) -> Tensor:
        """The mean losses; examples are gathered only if they are others than the last time."""
        if not self._examples.are_of(workloads):
            self._examples = Examples(workloads, self._x.shape[1], placed)
            x, y = self._examples.at(self._examples.index)
            self._x.copy_(x)
            self._y.copy_(y)
        self._weights.copy_(weights)
        self._play()
        return self._examples.means(self._losses)
