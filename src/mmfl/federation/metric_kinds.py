"""Kinds of metrics: what a metric of a whole test set is computed from.

A metric is one of three things. A function of (outputs, targets) with one value per example is averaged over the test
set (`Mean`). An `AdditiveMetric` is computed from numbers that add up over examples, so it needs little memory and can
be summed over the nodes of a deployment. A `CollectedMetric` needs all outputs, or is an object of torchmetrics.
"""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmfl.data.structure import Structure, tensors
from mmfl.federation.objectives import Objective, counted_examples, lower_is_better, per_example


class AdditiveMetric(ABC):
    """A metric that is computed from numbers that add up over the examples, such as counts.

    Derive from it for a metric of your own. A score is better if it is higher, unless `lower_is_better`.

    >>> class Bias(AdditiveMetric):
    ...     name = "bias"
    ...     def statistics(self, outputs, targets):
    ...         return torch.stack([outputs, targets], dim=1)
    ...     def value(self, sums):
    ...         return sums[..., 0] / sums[..., 1]
    >>> Bias().value(Bias().total(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0])))
    tensor(2., dtype=torch.float64)
    """

    name: str
    lower_is_better: bool = False

    @abstractmethod
    def statistics(self, outputs: Structure, targets: Structure) -> Tensor:
        """The numbers of each example, [examples, numbers]."""

    @abstractmethod
    def value(self, sums: Tensor) -> Tensor:
        """The metric of examples whose numbers have the sums [..., numbers]: one value each [...], nan where it is
        undefined, or a table each [..., rows, columns]."""

    def total(self, outputs: Structure, targets: Structure) -> Tensor:
        """The sums over a batch, [numbers]."""
        return self.statistics(outputs, targets).double().sum(0)


class Meter(Protocol):
    """What collects the outputs of a test set, batch by batch. The metrics of torchmetrics are such objects."""

    def update(self, outputs: Structure, targets: Structure) -> None:
        """Adds a batch."""

    def compute(self) -> Tensor:
        """The metric of all batches: one value, nan where it is undefined, or a table."""


class CollectedMetric(ABC):
    """A metric that cannot be computed from sums. It is not available where nodes of a deployment test, since their
    outputs stay with them."""

    name: str
    lower_is_better: bool = False

    @abstractmethod
    def start(self) -> Meter:
        """A meter that has seen nothing."""


Metric = AdditiveMetric | CollectedMetric


@dataclass(frozen=True)
class Mean(AdditiveMetric):
    """The mean of a function that gives one value per example."""

    function: Objective
    name = "mean"

    def statistics(self, outputs: Structure, targets: Structure) -> Tensor:
        """The value and 1; for an example that the function ignores, both are 0."""
        values = per_example(self.function(outputs, targets)).double()
        counted = counted_examples(self.function, targets)
        ones = torch.ones_like(values) if counted is None else counted.to(values)
        return torch.stack([values * ones, ones], dim=1)

    def value(self, sums: Tensor) -> Tensor:
        """Their ratio."""
        return sums[..., 0] / sums[..., 1]

    @property
    def lower_is_better(self) -> bool:  # type: ignore[override]
        """As the function says."""
        return lower_is_better(self.function)


@dataclass(frozen=True, eq=False)
class TorchMetric(CollectedMetric):
    """A metric of torchmetrics, or any object with its methods `update`, `compute` and `reset`."""

    metric: Any

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of its class."""
        return type(self.metric).__name__

    @property
    def lower_is_better(self) -> bool:  # type: ignore[override]
        """As it says."""
        return getattr(self.metric, "higher_is_better", None) is False

    def start(self) -> Meter:
        """A copy of its own, on the device of the outputs."""
        return _TorchMeter(copy.deepcopy(self.metric))


class _TorchMeter:
    def __init__(self, metric: Any):
        self.metric = metric
        self.metric.reset()

    def update(self, outputs: Structure, targets: Structure) -> None:
        if hasattr(self.metric, "to"):
            self.metric = self.metric.to(tensors(outputs)[0].device)
        self.metric.update(outputs, targets)

    def compute(self) -> Tensor:
        return torch.as_tensor(self.metric.compute())
