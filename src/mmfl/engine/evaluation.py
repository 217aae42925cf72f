"""Evaluation: what a test of global weights finds, and how it adds up batch by batch, over processes and nodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.structure import Structure, length, rows
from mmfl.engine.device import is_out_of_memory
from mmfl.engine.user_errors import as_user_error
from mmfl.errors import UserError, first_line
from mmfl.federation import Federation
from mmfl.federation.metric_kinds import AdditiveMetric, CollectedMetric, Mean, Metric
from mmfl.federation.task import Task
from mmfl.tensors import to_device
from mmfl.updates import World

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClientValues:
    """The main metric of each client that has test examples of its own, and how many; nan where it is undefined."""

    client: NDArray[np.int64]
    examples: NDArray[np.int64]
    value: Numbers


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Mean loss and main metric of global weights on the test examples; nan where the metric is undefined.

    `metrics` has all metrics that are single numbers, by name, and `tables` the others. `statistics` are what each
    metric was computed from: sums, or where these do not exist the metric itself.
    """

    loss: float
    metric: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Numbers] = field(default_factory=dict)
    clients: ClientValues | None = None
    statistics: Sequence[Numbers] = ()

    @classmethod
    def of(cls, task: Task, loss: float, statistics: Sequence[Numbers], clients: ClientValues | None) -> "Evaluation":
        """From the statistics of all metrics, in their order."""
        values: dict[str, Numbers] = {}
        for (name, metric), numbers in zip(task.all_metrics.items(), statistics, strict=True):
            with as_user_error(partial(_metric_fails, task, name)):
                whole = metric.value(torch.from_numpy(numbers)) if isinstance(metric, AdditiveMetric) else None
            values[name] = numbers if whole is None else whole.numpy()
        scalars = {name: float(value) for name, value in values.items() if value.ndim == 0}
        tables = {name: value for name, value in values.items() if value.ndim > 0}
        return cls(loss, scalars[next(iter(task.all_metrics))], scalars, tables, clients, statistics)


def _metric_fails(task: Task, name: str, of: str = "") -> str:
    return f"task '{task.name}': metric '{name}' fails on the test examples{of}"


class TaskTest:
    """A test of one task under way: collects loss and metrics of the batches, which come in the order of the shards.

    `sizes` [clients] are the test examples of each client, where they belong to clients; `describe` names a client.
    """

    def __init__(
        self, task: Task, sizes: NDArray[np.int64] | None, describe: Callable[[int], str] = "client {}".format
    ):
        self.task, self.describe = task, describe
        self.clients = np.zeros(0, dtype=np.int64) if sizes is None else np.flatnonzero(sizes)
        kept = None if sizes is None else sizes[sizes > 0]
        self.loss = _Sums(Mean(task.loss))
        self.metrics = [
            _start(metric, kept if metric is task.main_metric else None) for metric in task.all_metrics.values()
        ]

    def add(self, outputs: Structure, targets: Structure) -> None:
        """Adds a batch."""
        with as_user_error(lambda: f"task '{self.task.name}': the loss fails on the test examples"):
            self.loss.add(outputs, targets)
        for name, collected in zip(self.task.all_metrics, self.metrics, strict=True):
            with as_user_error(partial(_metric_fails, self.task, name)):
                collected.add(outputs, targets)

    def parts(self) -> list[Tensor]:
        """What was found, on the device: sums of the loss, statistics of each metric, and the clients' main metric."""
        found = [self.loss.statistics()]
        for name, collected in zip(self.task.all_metrics, self.metrics, strict=True):
            with as_user_error(partial(_metric_fails, self.task, name)):
                found.append(collected.statistics())
        return [*found, self._by_client()]

    def _by_client(self) -> Tensor:
        """The main metric of each client; nothing where test examples are shared."""
        main, name, number = self.metrics[0], next(iter(self.task.all_metrics)), len(self.clients)
        try:
            values = main.by_client()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            for n, client in enumerate(self.clients.tolist()):
                with as_user_error(partial(_metric_fails, self.task, name, f" of {self.describe(client)}")):
                    main.of_client(n)
            several = f" of {number} clients at once"
            raise UserError(f"{_metric_fails(self.task, name, several)}: {first_line(error)}") from error
        if values.shape != (number,):
            given = f"shape {tuple(values.shape)} for {number} clients; expected {(number,)}"
            raise UserError(f"task '{self.task.name}': metric '{name}' gives {given}, one value each.")
        return values


class _Sums:
    """The statistics of an additive metric, summed over all examples and, where `sizes` are given, by client."""

    def __init__(self, metric: AdditiveMetric, sizes: NDArray[np.int64] | None = None):
        self.metric, self.done = metric, 0
        self.offset = None if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
        self.sums: Tensor | None = None

    def add(self, outputs: Structure, targets: Structure) -> None:
        if self.offset is None:
            total = self.metric.total(outputs, targets)
            self.sums = total if self.sums is None else self.sums + total
            return
        numbers = self.metric.statistics(outputs, targets).double()
        if self.sums is None:
            self.sums = numbers.new_zeros(len(self.offset) - 1, numbers.shape[1])
        begin, self.done = self.done, self.done + len(numbers)
        lengths = np.diff(np.clip(self.offset, begin, self.done))
        clients = np.flatnonzero(lengths)  # one after another
        some = slice(clients[0], clients[-1] + 1)
        self.sums[some] += torch.segment_reduce(numbers, "sum", lengths=to_device(lengths[some], numbers.device))

    def statistics(self) -> Tensor:
        assert self.sums is not None
        return self.sums if self.offset is None else self.sums.sum(0)

    def by_client(self) -> Tensor:
        assert self.sums is not None
        return self.sums.new_zeros(0) if self.offset is None else self.metric.value(self.sums)

    def of_client(self, n: int) -> Tensor:
        assert self.sums is not None
        return self.metric.value(self.sums[n])


class _Meters:
    """The meter of a metric that needs all outputs, and one for each client where `sizes` are given."""

    def __init__(self, metric: CollectedMetric, sizes: NDArray[np.int64] | None = None):
        self.all, self.done = metric.start(), 0
        self.clients = [] if sizes is None else [metric.start() for _ in sizes]
        self.end = np.zeros(0, dtype=np.int64) if sizes is None else np.cumsum(sizes)

    def add(self, outputs: Structure, targets: Structure) -> None:
        self.all.update(outputs, targets)
        begin, self.done = self.done, self.done + length(targets)
        if self.clients:
            first, last = np.searchsorted(self.end, [begin, self.done - 1], side="right").tolist()
            bounds = [0, *(self.end[first:last] - begin).tolist(), self.done - begin]
            for meter, part in zip(self.clients[first : last + 1], map(slice, bounds, bounds[1:]), strict=True):
                meter.update(rows(outputs, part), rows(targets, part))

    def statistics(self) -> Tensor:
        return self.all.compute().double()

    def by_client(self) -> Tensor:
        values = [self.of_client(n) for n in range(len(self.clients))]
        return torch.stack(values) if values else torch.zeros(0, dtype=torch.float64)

    def of_client(self, n: int) -> Tensor:
        return self.clients[n].compute().double()


def _start(metric: Metric, sizes: NDArray[np.int64] | None) -> _Sums | _Meters:
    return _Sums(metric, sizes) if isinstance(metric, AdditiveMetric) else _Meters(metric, sizes)


def read_parts(federation: Federation, task: int, parts: Sequence[Numbers]) -> Evaluation:
    """The result of a test, from `TaskTest.parts`."""
    (total, examples), *statistics, values = parts
    shards, clients = federation.test_shards[task], None
    if shards is not None:
        client = np.flatnonzero(shards.sizes)
        clients = ClientValues(client, shards.sizes[client], values)
    return Evaluation.of(federation.tasks[task], float(total / examples), statistics, clients)


def share_parts(world: World, found: Sequence[Sequence[Tensor] | None], device: torch.device) -> list[list[Numbers]]:
    """The parts of every test, which all processes get; None stands for those that another process has made.

    The device is waited for once.
    """
    parts = [part.to(device) for each in found if each is not None for part in each]
    flat = torch.cat([part.flatten() for part in parts]) if parts else torch.zeros(0, device=device)
    counts = world.sums(np.array([float(len(each or ())) for each in found])).astype(int)
    made_here = np.repeat([each is not None for each in found], counts)
    shapes: NDArray[Any] = np.zeros((len(made_here), 3))  # dimensions and their lengths: at most a table
    for row, part in zip(np.flatnonzero(made_here), parts, strict=True):
        shapes[row, : part.dim() + 1] = [part.dim(), *part.shape]
    shapes = world.sums(shapes).astype(int)
    dimensions = [tuple(lengths[:number]) for number, *lengths in shapes.tolist()]
    sizes = np.array([int(np.prod(shape)) for shape in dimensions])
    everything = torch.zeros(int(sizes.sum()), dtype=torch.float64, device=device)
    everything[to_device(np.repeat(made_here, sizes), device)] = flat.double()
    numbers = np.split(world.sum(everything).cpu().numpy(), np.cumsum(sizes)[:-1])
    arrays = [part.reshape(shape) for part, shape in zip(numbers, dimensions, strict=True)]
    ends = np.cumsum(counts)
    return [arrays[end - count : end] for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]
