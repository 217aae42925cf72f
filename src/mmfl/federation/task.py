"""Task: one model to train, its data, its loss and metric, and how a client trains it."""

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmfl.checks import check, check_positive, check_whole, is_number
from mmfl.data import Dataset
from mmfl.data.augmentation import Augment, chain
from mmfl.data.dataset import ELSEWHERE
from mmfl.errors import UserError, check_name, first_line, nearest
from mmfl.federation.batch_norm import BatchNormMode
from mmfl.federation.metric_kinds import Metric
from mmfl.federation.metric_names import MetricSpec, read_metrics
from mmfl.federation.objectives import Objective, accuracy, cross_entropy
from mmfl.federation.optimisers import SGD, Optimiser, StateLifetime
from mmfl.federation.schedules import Schedule, StepSchedule
from mmfl.federation.task_checks import check_memory_of_parameters, check_same_parameters, check_task, trained_shapes
from mmfl.randomness import Purpose, bits

_RESERVED_NAMES = {
    "method",
    "mean",
    "worst",
    "average_mean",
    "spread",
    "relative",
    "trainings",
    "forward_passes",
    "megabytes",
}


@dataclass(frozen=True, eq=False)
class Task:
    """One model to train, with its data, its loss and metric, and the settings of local training.

    - `model`: any function without arguments that returns an `nn.Module`; usually its class.
    - `data`: a `Dataset`; may be left out in a deployment, where the data is on the nodes.
    - `loss`, `metric`: functions of (outputs, targets) that return one value per example; the defaults are for
      classification. `metric` may also be a metric of the whole test set, such as `mmfl.metrics.AUC()`, or a name.
    - `metrics`: further metrics to report, a list or by name: `["macro_f1", mmfl.metrics.TopK(3)]`.
    - `lr`: the learning rate, a number or a function of the round.
    - `lr_steps`: how the learning rate changes during local training: a function of (step, steps) that gives a factor.
    - `optimiser`: how a client turns gradients into steps, such as `optimisers.AdamW()`; plain SGD by default.
    - `optimiser_state`: how long the optimiser's state lives, for one "training" or with the "client".
    - `epochs`: how many passes a client makes over its data in a round.
    - `augment`: random changes of training inputs, such as `data.augmentation.Flip()`, or a list of them.
    - `batch_size`: examples in a mini-batch. None: all of a client's data. A function of the round: a share of it.
    - `batch_norm`: where the statistics of batch norm live, "shared", "local" (FedBN) or "frozen".
    - `priority`: how much the task counts, relative to the others, when an allocation decides who trains what.

    >>> from mmfl import data, models
    >>> Task("digits", model=models.LogisticRegression, data=data.digits(), lr=0.1, epochs=5).name
    'digits'
    """

    name: str
    model: Callable[[], nn.Module]
    data: Dataset = ELSEWHERE
    lr: float | Schedule = 0.1
    epochs: int = 1
    batch_size: int | Schedule | None = None
    loss: Objective = cross_entropy
    metric: MetricSpec = accuracy
    optimiser: Optimiser = field(default_factory=SGD)
    lr_steps: StepSchedule | None = None
    batch_norm: BatchNormMode = "shared"
    augment: Augment | Sequence[Augment] | None = None
    metrics: Mapping[str, MetricSpec] | Sequence[MetricSpec] = ()
    optimiser_state: StateLifetime = "training"
    priority: float = 1.0
    _built: dict[str, torch.Size] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_name()
        where = f"task '{self.name}'"
        if isinstance(self.model, nn.Module):
            kind = type(self.model).__name__
            raise UserError(
                f"{where}: model is an instance of {kind}; expected a class or a function that returns a new module, "
                f"such as model={kind} or model=lambda: {kind}(...)."
            )
        expected = "a class or a function that returns a torch.nn.Module"
        check(callable(self.model), where, "model", self.model, expected)
        expected = "a data set, such as mmfl.data.from_arrays(x, y)"
        check(isinstance(self.data, Dataset), where, "data", self.data, expected)
        expected = "a function of (outputs, targets), such as mmfl.objectives.squared_error"
        check(callable(self.loss), where, "loss", self.loss, expected)
        if not callable(self.lr):
            check_positive(where, "lr", self.lr)
        expected = "an optimiser such as mmfl.optimisers.AdamW()"
        check(isinstance(self.optimiser, Optimiser), where, "optimiser", self.optimiser, expected)
        expected = "a function of (step, steps)"
        check(self.lr_steps is None or callable(self.lr_steps), where, "lr_steps", self.lr_steps, expected)
        for key, choices in (("batch_norm", BatchNormMode), ("optimiser_state", StateLifetime)):
            if (given := getattr(self, key)) not in get_args(choices):
                raise UserError(f"{where}: unknown {key} '{given}': {nearest(str(given), get_args(choices))}")
        given = self.augment if isinstance(self.augment, Sequence) else [self.augment]
        valid = self.augment is None or all(map(callable, given))
        check(valid, where, "augment", self.augment, "a function of (inputs, random numbers), or a list of them")
        check_whole(where, "epochs", self.epochs)
        expected = "a positive number, from 1e-6 to 1e6"
        check(is_number(self.priority, 1e-6, 1e6), where, "priority", self.priority, expected)
        if not (self.batch_size is None or callable(self.batch_size)):
            check_whole(where, "batch_size", self.batch_size)
        _ = self.all_metrics  # so that a wrong name is found now

    def _check_name(self) -> None:
        check(isinstance(self.name, str), "task", "the name", self.name, "text")
        if not self.name:
            raise UserError("task: the name is empty.")
        check_name("task", self.name)
        if self.name in _RESERVED_NAMES:
            raise UserError(f"task '{self.name}': the name is reserved for a column of the results; expected another.")

    @property
    def augmentation(self) -> Augment | None:
        """All changes of training inputs as one."""
        return chain(self.augment)

    @cached_property
    def all_metrics(self) -> dict[str, Metric]:
        """All metrics by name, the main one first; functions as means over the test set."""
        return read_metrics(f"task '{self.name}'", self.metric, self.metrics)

    @property
    def main_metric(self) -> Metric:
        """The metric by which tables and comparisons go."""
        return next(iter(self.all_metrics.values()))

    @cached_property
    def model_bytes(self) -> int:
        """What the trained parameters take when they are sent, four bytes each."""
        if not self._built:
            self._build(0, 0)
        return 4 * sum(shape.numel() for shape in self._built.values())

    @property
    def keeps_optimiser_state(self) -> bool:
        """Whether clients keep the state of their optimisers from training to training; plain SGD has none."""
        return self.optimiser_state == "client" and not self.optimiser.is_plain

    def learning_rate(self, round: int) -> float:
        """The learning rate of a round."""
        if not callable(self.lr):
            return float(self.lr)
        rate = self._evaluate_schedule("lr", self.lr, round)
        if not 0 <= rate < math.inf:
            raise UserError(f"task '{self.name}': lr gives {rate} in round {round}; expected a number of at least 0.")
        return rate

    def step_factors(self, steps: int) -> NDArray[np.float64]:
        """The factors of the learning rate at each of a client's local steps, [steps]."""
        if self.lr_steps is None:
            return np.ones(steps)
        try:
            factors = np.array([float(self.lr_steps(step, steps)) for step in range(1, steps + 1)])
        except Exception as error:
            raise UserError(f"task '{self.name}': lr_steps fails with {steps} steps: {first_line(error)}") from None
        bad = np.flatnonzero(~((factors >= 0) & np.isfinite(factors)))
        if len(bad):
            where = f"at step {bad[0] + 1} of {steps}; expected a number of at least 0."
            raise UserError(f"task '{self.name}': lr_steps gives {factors[bad[0]]} {where}")
        return factors

    def rate_sums(self, round: int, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sums of the learning rates of that many local steps, [clients]."""
        if self.lr_steps is None:
            return steps * np.float64(np.float32(self.learning_rate(round)))
        sums = {count: self.step_factors(count).sum() for count in np.unique(steps).tolist()}
        return self.learning_rate(round) * np.array([sums[count] for count in steps.tolist()])

    def batches(self, round: int, size: NDArray[np.int64]) -> NDArray[np.int64]:
        """The batch size of each client in a round, given how many examples each has, [clients]."""
        if self.batch_size is None:
            return size
        if not callable(self.batch_size):
            return np.asarray(np.minimum(self.batch_size, size))
        wanted = np.maximum(np.ceil((self._batch_share(round) * size).round(9)), 1).astype(np.int64)
        return np.asarray(np.minimum(wanted, size))

    def check_schedules(self, last: int) -> None:
        """Evaluates the schedules in every round up to the last, so that mistakes show before training."""
        for round in range(1, last + 1):
            self.learning_rate(round)
            if callable(self.batch_size):
                self._batch_share(round)

    def _batch_share(self, round: int) -> float:
        share = self._evaluate_schedule("batch_size", self.batch_size, round)
        if not 0 < share <= 1:
            raise UserError(
                f"task '{self.name}': batch_size gives {share} in round {round}; expected a share of a client's data "
                "in (0, 1]."
            )
        return share

    def _evaluate_schedule(self, name: str, schedule: Any, round: int) -> float:
        try:
            return float(schedule(round))
        except Exception as error:
            raise UserError(f"task '{self.name}': {name} fails in round {round}: {first_line(error)}") from None

    def build(self, seed: int = 0, task: int = 0) -> nn.Module:
        """A new module whose initial weights are a function of (seed, task) alone.

        What is not trained, frozen parameters and buffers, is the same for all seeds: that of `build()`.
        """
        module = self._build(seed, task)
        if (seed, task) != (0, 0) and (fixed := _not_trained(module)):
            base = _not_trained(self._build(0, 0))
            for name, tensor in fixed.items():
                tensor.data.copy_(base[name])
        return module

    def fixed_digest(self) -> str:
        """A hash of what training does not change, frozen parameters and buffers; empty where there is nothing."""
        digest = hashlib.sha256()
        fixed = _not_trained(self.build())
        for name, tensor in fixed.items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest() if fixed else ""

    def _build(self, seed: int, task: int) -> nn.Module:
        """The model's own module may be part of another one, as a shared base: what is returned is a copy."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(bits(seed, Purpose.MODEL, task)) % 2**63)
            try:
                module = self.model()
            except UserError:
                raise
            except Exception as error:
                reason = " without arguments: " if isinstance(error, TypeError) else ": "
                raise UserError(f"task '{self.name}': the model cannot be built{reason}{first_line(error)}") from None
        if not isinstance(module, nn.Module):
            raise UserError(
                f"task '{self.name}': model returned a {type(module).__name__}; expected a torch.nn.Module."
            )
        try:
            check_memory_of_parameters(self, module)
            copied = copy.deepcopy(module)
        except (RuntimeError, ValueError, TypeError) as error:
            raise UserError(f"task '{self.name}': the model cannot be copied: {first_line(error)}") from None
        if not self._built:
            self._built.update(trained_shapes(copied))
        check_same_parameters(self, self._built, copied)
        return copied

    def check(self) -> None:
        """Refuses a model that fails on the data, labels out of range, and a loss or metric that does not fit."""
        check_task(self)


def _not_trained(module: nn.Module) -> dict[str, Tensor]:
    """A module's frozen parameters and its buffers, by name."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(module.named_buffers())}
