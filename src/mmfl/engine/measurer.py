"""Measurer: losses of clients and evaluation of global weights, by forward passes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from mmfl.data.dataset import as_inputs
from mmfl.data.lazy import is_lazy
from mmfl.data.structure import Structure, arguments, length
from mmfl.engine.architecture import Architecture
from mmfl.engine.base import Workload
from mmfl.engine.device import forward_batch_size, is_out_of_memory
from mmfl.engine.device_data import DeviceData
from mmfl.engine.evaluation import TaskTest
from mmfl.engine.gpu.batched_losses import batched_losses
from mmfl.engine.gpu.recorder import Recorder
from mmfl.engine.operators import BATCH_NORM, Operators
from mmfl.engine.precision import matmul_precision, to_float32
from mmfl.engine.user_errors import as_user_error
from mmfl.errors import first_line
from mmfl.federation.objectives import per_example
from mmfl.partition import Shards
from mmfl.tensors import to_device

_COUPLED_TEST_BATCH = 256


class Measurer:
    """Measures global weights without training them.

    With `batched`, workloads of one architecture share forward passes, recorded where the `recorder` can: faster on a
    GPU, of no use on a CPU.
    """

    def __init__(self, device_data: DeviceData, batched: bool, recorder: Recorder):
        self.device_data, self.batched, self.recorder = device_data, batched, recorder
        self.device = device_data.device
        self._not_batchable: set[Architecture] = set()

    def losses(self, architecture: Architecture, workloads: Sequence[Workload]) -> Sequence[Tensor]:
        """Mean losses of the clients of each workload, in ascending order. They stay on the device, so that nobody
        waits for it."""
        data = [workload.federation.tasks[workload.task].data for workload in workloads]
        alike = all(each.batch_norm is None or len(each.batch_norm) == 1 for each in workloads)
        if alike and self.can_batch(architecture) and not any(is_lazy((each.x, each.y)) for each in data):
            means = self._batched_losses(architecture, workloads)
            if means is not None:
                return list(means.split([len(workload.client) for workload in workloads]))
            self._not_batchable.add(architecture)
        return [self._losses(architecture, workload) for workload in workloads]

    def _losses(self, architecture: Architecture, workload: Workload) -> Tensor:
        """Mean losses of the clients of one workload, in ascending order."""
        shards = workload.federation.shards[workload.task].only(workload.client)
        loss, values = workload.federation.tasks[workload.task].loss, []

        def observe(outputs: Structure, targets: Structure) -> None:
            values.append(per_example(loss(outputs, targets)).double())

        self._forward(architecture, workload, shards, False, observe)
        return torch.segment_reduce(torch.cat(values), "mean", lengths=to_device(shards.sizes, self.device))

    def evaluate(self, architecture: Architecture, workload: Workload) -> list[Tensor]:
        """Loss and metrics of the test examples, as `TaskTest.parts`."""
        task, shards = workload.federation.tasks[workload.task], workload.federation.test_shards[workload.task]
        test = TaskTest(task, None if shards is None else shards.sizes, workload.federation.describe_client)
        if shards is None:
            rows = length(task.data.x_test)
            # Batches matter only where the examples of a batch influence one another: then they must be fixed.
            shards = Shards(np.arange(rows), np.append(np.arange(0, rows, _COUPLED_TEST_BATCH), rows))
        elif len(workload.client):
            shards = shards.only(workload.client)
        self._forward(architecture, workload, shards, True, test.add)
        return test.parts()

    def can_batch(self, architecture: Architecture) -> bool:
        """Whether workloads of this architecture share forward passes."""
        mixable = not architecture.coupled_in_tests and not architecture.draws
        return self.batched and mixable and architecture not in self._not_batchable

    def _batched_losses(self, architecture: Architecture, workloads: Sequence[Workload]) -> Tensor | None:
        """Mean losses by shared passes, recorded if possible; None if torch cannot batch the module."""
        max_examples, failed = forward_batch_size(architecture, self.device), ""
        for recorder in (self.recorder, None):
            try:
                with matmul_precision(architecture.precision):
                    means = batched_losses(architecture, workloads, self.device_data, max_examples, recorder)
            except (RuntimeError, ValueError, TypeError) as error:
                if is_out_of_memory(error):
                    raise
                failed = first_line(error)
                continue
            if failed:
                self.recorder.disable(architecture, failed)
            return means
        return None

    @torch.no_grad()
    def _forward(
        self,
        architecture: Architecture,
        workload: Workload,
        shards: Shards,
        test: bool,
        observe: Callable[[Structure, Structure], None],
    ) -> None:
        """Shows outputs and targets of the shards' training or test examples, batch by batch in their order."""
        data = workload.federation.tasks[workload.task].data
        examples = (data.x_test, data.y_test) if test else (data.x, data.y)
        module = architecture.module.eval()
        substitutes = BATCH_NORM & architecture.operators
        operators = Operators(substitutes) if substitutes else nullcontext()
        with operators, matmul_precision(architecture.precision), torch.random.fork_rng(enabled=architecture.draws):
            if architecture.draws:
                torch.manual_seed(0)
            for index, sizes, parameters in self._portions(architecture, workload, shards):
                for x, targets in self.device_data.chunks(examples, index, sizes):
                    with as_user_error(partial(_model_fails, workload, test)):
                        observe(to_float32(functional_call(module, parameters, *arguments(as_inputs(x)))), targets)
        architecture.set_training(module)

    def _portions(
        self, architecture: Architecture, workload: Workload, shards: Shards
    ) -> Iterator[tuple[NDArray[np.int64], int | list[int], dict[str, Tensor]]]:
        """Rows, how many of them are in each forward pass, and parameters and statistics by name: those of all clients
        together, or of one after another where each has batch norm of its own."""
        layout, weights, coupled = architecture.layout, workload.weights, architecture.coupled_in_tests
        sizes, size = shards.sizes[shards.sizes > 0], forward_batch_size(architecture, self.device)
        given = architecture.batch_norm[None] if workload.batch_norm is None else workload.batch_norm
        if len(given) == 1:
            yield shards.index, sizes.tolist() if coupled else size, layout.values(weights, given[0])
            return
        with_rows = np.argsort(workload.client)[shards.sizes > 0]
        own = np.split(shards.index, np.cumsum(sizes)[:-1])
        for batch_norm, rows in zip(given[to_device(with_rows, given.device)], own, strict=True):
            yield rows, len(rows) if coupled else size, layout.values(weights, batch_norm)


def _model_fails(workload: Workload, test: bool) -> str:
    examples = "test examples" if test else "clients' examples"
    return f"task '{workload.federation.tasks[workload.task].name}': model or loss fails on the {examples}"
