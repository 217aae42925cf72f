"""Task: one model to train, its data, its loss and metric, and how a client trains it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmfl.checks import check, check_positive, check_whole
from mmfl.data import Dataset
from mmfl.data.dataset import ELSEWHERE, as_inputs
from mmfl.errors import UserError, check_name
from mmfl.federation.objectives import Objective, accuracy, cross_entropy, finite, per_example
from mmfl.federation.schedules import Schedule
from mmfl.randomness import Purpose, bits

_TAKEN = {"method", "mean", "worst", "spread", "relative", "trainings", "forward_passes", "megabytes"}


@dataclass(frozen=True, eq=False)
class Task:
    """One of the models that share the clients.

    `model` is any function without arguments that makes an `nn.Module` (its class, most often). `loss` and `metric`
    map (outputs, targets) to one value per example; classification is the default. `data` may be left out where the
    data is at the nodes of a deployment. A client trains for `epochs`
    passes in mini-batches of `batch_size` (None: its whole data at once; a function of the round: that share of its
    data) by SGD with step `lr`, a number or a function of the round.

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
    metric: Objective = accuracy

    def __post_init__(self) -> None:
        self._check_name()
        where = f"task '{self.name}'"
        if isinstance(self.model, nn.Module):
            made = type(self.model).__name__
            raise UserError(
                f"{where}: model is a {made} that is made already; expected a class or a function that makes the "
                f"module, such as model={made} or model=lambda: {made}(...)."
            )
        right = callable(self.model)
        check(right, where, "model", self.model, "a class or a function that makes a torch.nn.Module")
        if not callable(self.lr):
            check_positive(where, "lr", self.lr)
        check_whole(where, "epochs", self.epochs)
        if not (self.batch_size is None or callable(self.batch_size)):
            check_whole(where, "batch_size", self.batch_size)

    def _check_name(self) -> None:
        if not isinstance(self.name, str):
            raise UserError(f"task: the name is {self.name!r}; expected text.")
        if not self.name:
            raise UserError("task: the name is empty.")
        check_name("task", self.name)
        if self.name in _TAKEN:
            raise UserError(f"task '{self.name}': tables of results have a column of that name; expected another.")

    def learning_rate(self, round: int) -> float:
        """The step size of local training in a round."""
        if not callable(self.lr):
            return float(self.lr)
        rate = self._scheduled("lr", self.lr, round)
        if not 0 <= rate < math.inf:
            raise UserError(f"task '{self.name}': lr gives {rate} in round {round}; expected a number of at least 0.")
        return rate

    def batches(self, round: int, size: NDArray[np.int64]) -> NDArray[np.int64]:
        """The batch sizes in a round of clients with so many examples."""
        if self.batch_size is None:
            return size
        if callable(self.batch_size):
            wanted = np.maximum(np.ceil((self._batch_share(round) * size).round(9)), 1).astype(np.int64)
        else:
            wanted = np.full(len(size), self.batch_size)
        batches: NDArray[np.int64] = np.minimum(wanted, size)
        return batches

    def check_schedules(self, last: int) -> None:
        """Tries the schedules in every round up to the last, so that mistakes show before training."""
        for round in range(1, last + 1):
            if callable(self.lr):
                self.learning_rate(round)
            if callable(self.batch_size):
                self._batch_share(round)
            if not (callable(self.lr) or callable(self.batch_size)):
                return

    def _batch_share(self, round: int) -> float:
        share = self._scheduled("batch_size", self.batch_size, round)
        if not 0 < share <= 1:
            raise UserError(
                f"task '{self.name}': batch_size gives {share} in round {round}; expected a share of a client's data "
                "in (0, 1]."
            )
        return share

    def _scheduled(self, name: str, schedule: Any, round: int) -> float:
        try:
            return float(schedule(round))
        except Exception as error:
            raise UserError(f"task '{self.name}': {name} fails in round {round}: {_first_line(error)}") from None

    def build(self, seed: int = 0, task: int = 0) -> nn.Module:
        """A new module whose initial weights are a function of (seed, task) alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(bits(seed, Purpose.MODEL, task)) % 2**63)
            try:
                module = self.model()
            except UserError:
                raise
            except Exception as error:
                reason = " without arguments: " if isinstance(error, TypeError) else ": "
                raise UserError(f"task '{self.name}': the model cannot be made{reason}{_first_line(error)}") from None
        if not isinstance(module, nn.Module):
            raise UserError(f"task '{self.name}': model made a {type(module).__name__}; expected a torch.nn.Module.")
        return module

    def check(self) -> None:
        """Tries the model on two examples and looks at the labels, so that mistakes show before training."""
        if self.data is ELSEWHERE:
            raise UserError(
                f"task '{self.name}' has no data; expected data=... (only a deployment's server needs none)."
            )
        module = self.build()
        self._check_module(module)
        outputs = self._try(module)
        if self.loss is cross_entropy:
            self._check_labels(outputs)
        for kind, objective in (("loss", self.loss), ("metric", self.metric)):
            self._check_objective(kind, objective, outputs)
        self._check_examples_apart(module, outputs)

    def _check_module(self, module: nn.Module) -> None:
        if not any(p.requires_grad for p in module.parameters()):
            raise UserError(f"task '{self.name}': the model has no parameters to train.")
        for name, part in module.named_modules():
            if getattr(part, "running_mean", None) is not None:
                raise UserError(
                    f"task '{self.name}': '{name}' keeps running batch statistics, which clients cannot share; "
                    "build it with track_running_stats=False, or use group norm."
                )
        for name, parameter in module.named_parameters():
            if parameter.dtype != torch.float32:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise UserError(f"task '{self.name}': parameter '{name}' is {kind}; expected float32.")

    def _try(self, module: nn.Module) -> Tensor:
        """Outputs for the first two examples, from a model that works and keeps nothing to itself."""
        x = as_inputs(self.data.x[:2])
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                module.train()(x)
                outputs = module.eval()(x)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UserError(
                f"task '{self.name}': the model fails on inputs of shape {tuple(x.shape)}: {_first_line(error)}"
            ) from None
        changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])]
        if changed:
            raise UserError(
                f"task '{self.name}': training changes the model's buffer '{changed[0]}', which clients cannot share."
            )
        if not isinstance(outputs, Tensor):
            raise UserError(f"task '{self.name}': the model gives a {type(outputs).__name__}; expected a tensor.")
        return outputs

    def _check_objective(self, kind: str, objective: Objective, outputs: Tensor) -> None:
        values = self._values(kind, objective, outputs, self.data.y[: len(outputs)])
        if not finite(per_example(values.float())):
            raise UserError(f"task '{self.name}': the {kind} is not finite at the initial weights.")

    def _values(self, kind: str, objective: Objective, outputs: Tensor, y: Tensor) -> Tensor:
        """What a loss or metric gives, with the example as its first dimension."""
        try:
            values = objective(outputs, y)
        except Exception as error:
            raise UserError(
                f"task '{self.name}': the {kind} fails on outputs {tuple(outputs.shape)} and targets "
                f"{tuple(y.shape)}: {_first_line(error)}"
            ) from None
        if not isinstance(values, Tensor):
            raise UserError(
                f"task '{self.name}': the {kind} gives a {type(values).__name__}; expected one value per example."
            )
        if values.dim() == 0 or len(values) != len(y):
            examples = f"{len(y)} example{'s' if len(y) > 1 else ''}"
            raise UserError(
                f"task '{self.name}': the {kind} gives shape {tuple(values.shape)} for {examples}; "
                "expected one value per example (reduction='none')."
            )
        return values

    def _check_examples_apart(self, module: nn.Module, outputs: Tensor) -> None:
        """Refuses a loss or metric whose value of an example changes with the other examples beside it.

        Outputs [n, 1] less targets [n] are a table [n, n], which looks like values per position. So each example is
        also tried alone. The examples have different targets where there are any, and outputs of weights that are
        not those of a zero start; their number is no other length of outputs or targets.
        """
        y = self.data.y
        lengths = {*outputs.shape[1:], *y.shape[1:]}
        number = next(n for n in range(2, len(lengths) + 3) if n not in lengths)
        unlike = (y != y[0]).reshape(len(y), -1).any(1).nonzero().flatten()
        rows = torch.cat([torch.zeros(1, dtype=torch.long), unlike[:1], torch.arange(1, number + 1)])[:number] % len(y)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            outputs, y = module.eval()(as_inputs(self.data.x[rows])), y[rows]
            for kind, objective in (("loss", self.loss), ("metric", self.metric)):
                together = self._values(kind, objective, outputs, y)
                alone = [self._values(kind, objective, outputs[n : n + 1], y[n : n + 1]) for n in range(number)]
                given = f"outputs {tuple(outputs.shape)} and targets {tuple(y.shape)}"
                if any(values.shape != together[:1].shape for values in alone):
                    raise UserError(
                        f"task '{self.name}': the {kind} gives shape {tuple(together.shape)} for {given}, as if every "
                        "output met every target; "
                        "give both the same shape: targets of shape [n, 1], or outputs.squeeze(1) in the model."
                    )
                if not torch.allclose(torch.cat(alone).float(), together.float(), 1e-3, 1e-5, equal_nan=True):
                    raise UserError(
                        f"task '{self.name}': the {kind} of an example changes with the other examples of its batch; "
                        f"expected value n to depend on output n and target n alone ({given})."
                    )

    def _check_labels(self, outputs: Tensor) -> None:
        if outputs.dim() != 2:
            raise UserError(
                f"task '{self.name}': the model gives shape {tuple(outputs.shape)}; expected [examples, classes]."
            )
        classes = outputs.shape[1]
        for test, labels in ((False, self.data.y), (True, self.data.y_test)):
            part = "test " if test and self.data.rows is None else ""
            if labels.is_floating_point() or labels.dim() != 1:
                raise UserError(
                    f"task '{self.name}': {part}targets are not class numbers; choose a loss such as squared_error."
                )
            wrong = ((labels < 0) | (labels >= classes)).nonzero()
            if len(wrong):
                row = int(wrong[0])
                label = f"{part}label {int(labels[row])} at row {self.data.given_row(row, test)}"
                raise UserError(
                    f"task '{self.name}': {label}, but the model has {classes} outputs (labels 0 to {classes - 1})."
                )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
