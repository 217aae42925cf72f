"""Task: one model to train, its data, its loss and metric, and how a client trains it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmfl.data import Dataset
from mmfl.data.dataset import ELSEWHERE, as_inputs
from mmfl.errors import UserError, check_name
from mmfl.objectives import Objective, accuracy, cross_entropy, finite, per_example
from mmfl.randomness import Purpose, bits
from mmfl.schedules import Schedule

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
        if not self.name:
            raise UserError("task: the name is empty.")
        check_name("task", self.name)
        if self.name in _TAKEN:
            raise UserError(f"task '{self.name}': tables of results have a column of that name; expected another.")
        if not callable(self.lr) and not self.lr > 0:
            raise UserError(f"task '{self.name}': lr is {self.lr}; expected a positive number.")
        if not isinstance(self.epochs, int | np.integer) or self.epochs < 1:
            raise UserError(f"task '{self.name}': epochs is {self.epochs}; expected at least 1.")
        counted = not (self.batch_size is None or callable(self.batch_size))
        if counted and (not isinstance(self.batch_size, int | np.integer) or self.batch_size < 1):
            raise UserError(f"task '{self.name}': batch_size is {self.batch_size}; expected at least 1.")

    def learning_rate(self, round: int) -> float:
        """The step size of local training in a round."""
        return float(self.lr(round)) if callable(self.lr) else float(self.lr)

    def batches(self, round: int, size: NDArray[np.int64]) -> NDArray[np.int64]:
        """The batch sizes in a round of clients with so many examples."""
        if self.batch_size is None:
            return size
        if callable(self.batch_size):
            wanted = np.maximum(np.ceil((self.batch_size(round) * size).round(9)), 1).astype(np.int64)
        else:
            wanted = np.full(len(size), self.batch_size)
        batches: NDArray[np.int64] = np.minimum(wanted, size)
        return batches

    def build(self, seed: int = 0, task: int = 0) -> nn.Module:
        """A new module whose initial weights are a function of (seed, task) alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(bits(seed, Purpose.MODEL, task)) % 2**63)
            try:
                module = self.model()
            except TypeError as error:
                raise UserError(
                    f"task '{self.name}': the model cannot be made without arguments: {_first_line(error)}"
                ) from None
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
        y = self.data.y[:2]
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
            raise UserError(
                f"task '{self.name}': the {kind} gives shape {tuple(values.shape)} for {len(y)} examples; "
                "expected one value per example (reduction='none')."
            )
        if not finite(per_example(values.float())):
            raise UserError(f"task '{self.name}': the {kind} is not finite at the initial weights.")

    def _check_labels(self, outputs: Tensor) -> None:
        if outputs.dim() != 2:
            raise UserError(
                f"task '{self.name}': the model gives shape {tuple(outputs.shape)}; expected [examples, classes]."
            )
        classes = outputs.shape[1]
        for part, labels in (("", self.data.y), ("test ", self.data.y_test)):
            if labels.is_floating_point() or labels.dim() != 1:
                raise UserError(
                    f"task '{self.name}': {part}targets are not class numbers; choose a loss such as squared_error."
                )
            wrong = ((labels < 0) | (labels >= classes)).nonzero()
            if len(wrong):
                row = int(wrong[0])
                raise UserError(
                    f"task '{self.name}': {part}label {int(labels[row])} at row {row}, but the model has {classes} "
                    f"outputs (labels 0 to {classes - 1})."
                )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
