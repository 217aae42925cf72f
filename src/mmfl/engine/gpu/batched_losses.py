"""Losses of several tasks or replicas of one architecture in one forward pass, each with its own weights.

Starting a forward pass over a few thousand examples takes a GPU as long as running it: one pass for all is faster than
one for each, and a recorded one faster still.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmfl.data.dataset import as_inputs
from mmfl.data.structure import Structure, leaves, map_leaves, select
from mmfl.engine.architecture import Architecture
from mmfl.engine.base import Workload
from mmfl.engine.device_data import DeviceData
from mmfl.engine.factored import GradientFactors
from mmfl.engine.gpu.recorder import Recorder, Stream
from mmfl.engine.vectorised import VmappedModule
from mmfl.tensors import to_device

_WIDTH = 64  # the width of recorded passes is a multiple of it


@torch.no_grad()
def batched_losses(
    architecture: Architecture,
    workloads: Sequence[Workload],
    device_data: DeviceData,
    max_examples: int,
    recorder: Recorder | None = None,
) -> Tensor:
    """Mean losses of the workloads' clients, workload after workload, with at most `max_examples` in a pass."""
    weights = torch.stack([architecture.with_statistics(each.weights, each.batch_norm) for each in workloads])
    longest = max(int(each.federation.sizes[each.client, each.task].sum()) for each in workloads)
    rows, width = len(workloads), -(-longest // _WIDTH) * _WIDTH
    if recorder and rows * width <= max_examples and recorder.fits(architecture, rows * width):
        stream = recorder.stream(width)
        with torch.cuda.device_of(weights), stream.use():
            recorded = recorder.get(
                (architecture, "losses", rows, width),
                lambda: _RecordedPass(architecture, weights, PaddedExamples(workloads, width, device_data), stream),
            )
            means = recorded(weights, workloads, device_data)
        stream.join()
        return means
    examples = PaddedExamples(workloads, width, device_data)
    parts = examples.index.split(max(1, max_examples // rows), 1)
    return examples.means(torch.cat([_losses(architecture, weights, *examples.gather(part)) for part in parts], 1))


class PaddedExamples:
    """Examples of the workloads' clients, a row per workload, padded to one length with the last example.

    Padding is a segment of its own, which is dropped from the means.
    """

    def __init__(self, workloads: Sequence[Workload], length: int, device_data: DeviceData):
        self._device_data, device = device_data, device_data.device
        self._clients = [(each.federation, each.task, each.client) for each in workloads]
        self._data = [each.federation.tasks[each.task].data for each in workloads]
        shards = [each.federation.shards[each.task].only(each.client) for each in workloads]
        self.index = to_device(
            np.stack([np.pad(each.index, (0, length - len(each.index)), "edge") for each in shards]), device
        )
        segments = [np.append(each.sizes, length - len(each.index)) for each in shards]
        of_clients = np.concatenate([np.arange(len(each)) < len(each) - 1 for each in segments])
        self._segments = to_device(np.concatenate(segments), device)
        self._client_segments = to_device(np.flatnonzero(of_clients), device)

    def belong_to(self, workloads: Sequence[Workload]) -> bool:
        """Whether these are the examples of the workloads."""
        return all(
            federation is each.federation and task == each.task and np.array_equal(client, each.client)
            for (federation, task, client), each in zip(self._clients, workloads, strict=True)
        )

    def gather(self, index: Tensor) -> tuple[Structure, Structure]:
        """Inputs and targets [workloads, rows, ...]."""
        pairs = zip(self._data, index, strict=True)
        parts = [select(self._device_data((data.x, data.y)), rows) for data, rows in pairs]
        x, y = map_leaves(lambda *leaves: torch.stack(leaves), *parts)
        return as_inputs(x), y

    def means(self, values: Tensor) -> Tensor:
        """The mean of each client's values [workloads, length]."""
        means = torch.segment_reduce(values.double().flatten(), "mean", lengths=self._segments, unsafe=True)
        return means[self._client_segments]


def _losses(architecture: Architecture, weights: Tensor, x: Structure, y: Structure) -> Tensor:
    """The loss of every example, [workloads, examples]; `weights` are followed by the statistics of batch norm."""
    module, layout = VmappedModule(architecture, weights.device), architecture.layout
    parameters, statistics = weights.split([layout.length, layout.statistics.length], 1)
    architecture.functional.module.eval()
    try:
        views = layout.views(parameters), layout.statistics.views(statistics)
        return module.losses(*views, GradientFactors(()), x, y)
    finally:
        architecture.functional.clear()
        architecture.set_training(architecture.functional.module)


class _RecordedPass:
    """A recorded forward pass, and the tensors that it always reads and writes."""

    def __init__(self, architecture: Architecture, weights: Tensor, examples: PaddedExamples, stream: Stream):
        self._examples, self._weights = examples, weights.clone()
        self._x, self._y = examples.gather(examples.index)
        self._values = weights.new_empty(leaves(self._y)[0].shape[:2])

        def run() -> None:
            self._values.copy_(_losses(architecture, self._weights, self._x, self._y))

        self._replay = stream.record(run)

    def __call__(self, weights: Tensor, workloads: Sequence[Workload], device_data: DeviceData) -> Tensor:
        """The mean losses; examples are gathered again only if the clients are others than the last time."""
        if not self._examples.belong_to(workloads):
            self._examples = PaddedExamples(workloads, self._values.shape[1], device_data)
            map_leaves(Tensor.copy_, (self._x, self._y), self._examples.gather(self._examples.index))
        self._weights.copy_(weights)
        self._replay()
        return self._examples.means(self._values)
