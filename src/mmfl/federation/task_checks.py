"""Checks of a task before training: its model, its labels, its loss and its metric, tried on a few examples."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mmfl.data.augmentation import Random
from mmfl.data.dataset import ELSEWHERE, as_inputs
from mmfl.data.lazy import is_lazy
from mmfl.data.structure import (
    Structure,
    call_module,
    describe,
    leaves,
    length,
    map_tensors,
    named_leaves,
    rows,
    tensors,
)
from mmfl.errors import UserError, first_line
from mmfl.federation.batch_norm import batch_norm_layers, set_training
from mmfl.federation.metric_kinds import AdditiveMetric, Mean, Metric
from mmfl.federation.objectives import IGNORE, Objective, cross_entropy, options_of, per_example

if TYPE_CHECKING:
    from mmfl.federation.task import Task


_MAX_TARGETS_READ = 256  # of targets that are read when needed, so many are looked at


def check_task(task: "Task") -> None:
    """Refuses a task whose model fails on its data, whose labels are out of range or whose loss or metric does not give
    one value per example."""
    if task.data is ELSEWHERE:
        raise UserError(f"task '{task.name}' has no data; expected data=... (only a deployment's server needs none).")
    module = task.build()
    _check_module(task, module)
    outputs = _try_model(task, module)
    loss, options = options_of(task.loss)
    if loss is cross_entropy:
        _check_labels(task, outputs, options.get("ignore_index", IGNORE))
    y = rows(task.data.y, slice(2))
    for kind, objective in _objectives(task).items():
        values = _values(task, kind, objective, outputs, y)
        if not torch.isfinite(per_example(values.float())).all():
            raise _error(task, f"the {kind} is not finite at the initial weights.")
    _check_metrics(task, outputs, y)
    _check_examples_are_independent(task, module, outputs)
    _check_augmentation(task)
    _check_gradient(task)


def check_memory_of_parameters(task: "Task", module: nn.Module) -> None:
    """Refuses a parameter that is trained in memory that a frozen one or a buffer has too: a copy would part them."""
    fixed = {name: f"'{name}', which is frozen" for name, p in module.named_parameters() if not p.requires_grad}
    fixed |= {name: f"the buffer '{name}'" for name, _ in module.named_buffers()}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    others = {_memory(tensors[name]): what for name, what in fixed.items() if tensors[name].numel()}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.numel() and (other := others.get(_memory(parameter))):
            raise _error(task, f"'{name}' is trained but shares its memory with {other}; clone one.")


def check_same_parameters(task: "Task", before: Mapping[str, torch.Size], module: nn.Module) -> None:
    """Refuses a module that trains other parameters than the first one that the model built, whose shapes are given.

    That happens where the models of two tasks contain the same module, and one of them freezes it.
    """
    now = trained_shapes(module)
    if now == before:
        return
    name = next(name for name in (*before, *now) if before.get(name) != now.get(name))
    shapes = [f"trained with shape {tuple(each[name])}" if name in each else "not trained" for each in (before, now)]
    reason = "if a base of several tasks is frozen, freeze it before the first of them is built, or freeze a copy"
    raise _error(task, f"parameter '{name}' is {shapes[0]} when the model is first built, then {shapes[1]}; {reason}.")


def trained_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """The shapes of the parameters that a module trains, by name."""
    return {name: p.shape for name, p in module.named_parameters() if p.requires_grad}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _objectives(task: "Task") -> dict[str, Objective]:
    """The loss, and what each metric gives for an example."""
    rows = {
        _kind(task, name): metric.function if isinstance(metric, Mean) else metric.statistics
        for name, metric in task.all_metrics.items()
        if isinstance(metric, AdditiveMetric)
    }
    return {"loss": task.loss, **rows}


def _kind(task: "Task", name: str) -> str:
    """What a metric is called in errors."""
    return "metric" if task.all_metrics[name] is task.main_metric else f"metric '{name}'"


def _check_metrics(task: "Task", outputs: Structure, y: Structure) -> None:
    """Refuses metrics of the whole test set that fail, or give neither one value nor a table, and a table as the main
    metric."""
    for name, metric in task.all_metrics.items():
        kind, shapes = _kind(task, name), f"outputs {describe(outputs)} and targets {describe(y)}"
        try:
            found = _value(metric, outputs, y)
        except Exception as error:
            raise _error(task, f"the {kind} fails on {shapes}: {first_line(error)}") from None
        if found.dim() not in (0, 2):
            raise _error(task, f"the {kind} gives shape {tuple(found.shape)}; expected one value, or a table.")
        if found.dim() and metric is task.main_metric:
            raise _error(task, f"the metric '{name}' is a table; expected one value (give tables in metrics=[...]).")


def _value(metric: Metric, outputs: Structure, y: Structure) -> Tensor:
    """The metric of the first example or, if it needs all outputs, of all of them."""
    if isinstance(metric, AdditiveMetric):
        return metric.value(metric.statistics(outputs, y).double())[0]
    meter = metric.start()
    with warnings.catch_warnings():  # that the few examples lack classes means nothing
        warnings.simplefilter("ignore")
        meter.update(outputs, y)
        return meter.compute()


def _error(task: "Task", problem: str) -> UserError:
    return UserError(f"task '{task.name}': {problem}")


def _check_module(task: "Task", module: nn.Module) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        raise _error(task, "the model has no parameters to train.")
    for name, layer in batch_norm_layers(module):
        if layer.momentum is None and task.batch_norm != "frozen":
            remedy = "expected a number, such as 0.1, or batch_norm='frozen'"
            raise _error(task, f"'{name}' has momentum None, a mean over all batches that clients never see; {remedy}.")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise _error(task, f"parameter '{name}' is {kind}; expected float32.")


def _try_model(task: "Task", module: nn.Module) -> Structure:
    """The model's outputs for the first two examples; refuses a model that fails on them or changes its buffers."""
    x = as_inputs(rows(task.data.x, slice(2)))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call_module(set_training(module, task.batch_norm), x)
            outputs = call_module(module.eval(), x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        hint = " (a dictionary is given as keyword arguments)" if isinstance(x, dict) else ""
        raise _error(task, f"the model fails on inputs of shape {describe(x)}{hint}: {first_line(error)}") from None
    layers = [name for name, _ in batch_norm_layers(module)]
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]) and name.rpartition(".")[0] not in layers:
            reason = "only the statistics of batch norm can be shared; keep it constant, or make it a parameter"
            raise _error(task, f"training changes the model's buffer '{name}': {reason}.")
    for name, leaf in named_leaves(outputs).items():
        if not isinstance(leaf, Tensor) or len(leaf.shape[:1]) == 0 or len(leaf) != length(x):
            given = f"shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            given = f"{given} as outputs{name}" if name else given
            raise _error(task, f"the model gives {given} for 2 examples; expected tensors with a row for each.")
    return outputs


def _check_gradient(task: "Task") -> None:
    """Refuses a model or loss that no gradient comes from: one whose backward pass fails, or that is constant."""
    module, x = set_training(task.build(), task.batch_norm), as_inputs(rows(task.data.x, slice(2)))
    with torch.random.fork_rng(devices=[]):
        outputs, y = call_module(module, x), rows(task.data.y, slice(2))
        loss = _values(task, "loss in training", task.loss, outputs, y).sum()
        if not loss.requires_grad:
            remedy = "expected outputs with a gradient, so no detach() and no torch.no_grad()"
            raise _error(task, f"the loss does not depend on the parameters that are trained; {remedy}.")
        try:
            torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad], allow_unused=True)
        except Exception as error:
            raise _error(task, f"the backward pass of model and loss fails: {first_line(error)}") from None


def _check_labels(task: "Task", outputs: Structure, ignored: int) -> None:
    if not isinstance(outputs, Tensor):
        remedy = "give a loss that picks one of them"
        raise _error(task, f"the model gives {describe(outputs)}, and cross_entropy needs one tensor; {remedy}.")
    if outputs.dim() != 2:
        raise _error(task, f"the model gives shape {tuple(outputs.shape)}; expected [examples, classes].")
    classes = outputs.shape[1]
    for test, labels in ((False, task.data.y), (True, task.data.y_test)):
        part = "test " if test and task.data.rows is None else ""
        if isinstance(labels, Tensor) and labels.dim() == 2 and not labels.is_floating_point():
            remedy = "y[:, 0]" if labels.shape[1] == 1 else "y.argmax(1) where they are one-hot, or another loss"
            raise _error(task, f"{part}targets have shape {tuple(labels.shape)}; expected [examples]: {remedy}.")
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() != 1:
            raise _error(task, f"{part}targets are not class numbers; choose a loss such as squared_error.")
        wrong = (((labels < 0) | (labels >= classes)) & (labels != ignored)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            label = f"{part}label {int(labels[row])} at row {task.data.original_row(row, test)}"
            raise _error(task, f"{label}, but the model has {classes} outputs (labels 0 to {classes - 1}).")


def _values(task: "Task", kind: str, objective: Objective, outputs: Structure, y: Structure) -> Tensor:
    """The values of a loss or metric, whose first dimension must be the example."""
    try:
        values = objective(outputs, y)
    except Exception as error:
        shapes = f"outputs {describe(outputs)} and targets {describe(y)}"
        raise _error(task, f"the {kind} fails on {shapes}: {first_line(error)}") from None
    if not isinstance(values, Tensor):
        raise _error(task, f"the {kind} gives a {type(values).__name__}; expected one value per example.")
    if values.dim() == 0 or len(values) != length(y):
        given = f"shape {tuple(values.shape)} for {length(y)} example{'s' if length(y) > 1 else ''}"
        raise _error(task, f"the {kind} gives {given}; expected one value per example (reduction='none').")
    return values


def _check_examples_are_independent(task: "Task", module: nn.Module, outputs: Structure) -> None:
    """Refuses a loss or metric whose value for an example depends on the other examples of the batch.

    Outputs [n, 1] minus targets [n] broadcast to a table [n, n], which looks like one value per position. So each
    example is also tried alone. The examples have different targets if the data has any, the weights are perturbed in
    case they start at zero, and the number of examples differs from every other dimension of outputs and targets.
    """
    x, y = task.data.x, task.data.y
    lengths = {size for leaf in (*tensors(outputs), *leaves(y)) for size in leaf.shape[1:]}
    number = next(n for n in range(2, len(lengths) + 3) if n not in lengths)
    known = leaves(rows(y, slice(_MAX_TARGETS_READ)) if is_lazy(y) else y)
    different = torch.stack([(leaf != leaf[0]).reshape(len(leaf), -1).any(1) for leaf in known]).any(0)
    chosen = torch.cat([torch.zeros(1, dtype=torch.long), different.nonzero()[:1, 0], torch.arange(1, number + 1)])
    chosen = chosen[:number] % length(y)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        outputs, y = call_module(module.eval(), as_inputs(rows(x, chosen))), rows(y, chosen)
        for kind, objective in _objectives(task).items():
            together = _values(task, kind, objective, outputs, y)
            alone = [_values(task, kind, objective, *_only(n, outputs, y)) for n in range(number)]
            shapes = f"outputs {describe(outputs)} and targets {describe(y)}"
            if any(values.shape != together[:1].shape for values in alone):
                problem = f"gives shape {tuple(together.shape)} for {shapes}, as if every output met every target"
                remedy = "give both the same shape: targets of shape [n, 1], or outputs.squeeze(1) in the model"
                raise _error(task, f"the {kind} {problem}; {remedy}.")
            if not torch.allclose(torch.cat(alone).float(), together.float(), 1e-3, 1e-5, equal_nan=True):
                problem = f"the {kind} of an example changes with the other examples of its batch"
                remedy = "expected value n to depend on output n and target n alone"
                raise _error(task, f"{problem}; {remedy} ({shapes}).")


def _check_augmentation(task: "Task") -> None:
    """Refuses an augmentation that fails, changes shapes or its own input, or lets examples depend on one another."""
    if task.augmentation is None:
        return
    x = as_inputs(rows(task.data.x, torch.arange(3) % length(task.data.x)))
    before, keys = map_tensors(Tensor.clone, x), torch.arange(3)
    try:
        together = task.augmentation(x, Random(keys))
        alone = task.augmentation(_only(1, x)[0], Random(keys[1:2]))
    except Exception as error:
        raise _error(task, f"augment fails on inputs of shape {describe(x)}: {first_line(error)}") from None
    if describe(together) != describe(x) or describe(alone) != describe(_only(1, x)[0]):
        raise _error(task, f"augment gives {describe(together)} for inputs {describe(x)}; expected the same shapes.")
    for name, leaf in named_leaves(together).items():
        given, kind = (str(each.dtype).removeprefix("torch.") for each in (leaf, named_leaves(x)[name]))
        if given != kind:
            raise _error(task, f"augment gives {given} for inputs{name} of {kind}; expected the same kind of numbers.")
    if not _equal(x, before):
        raise _error(task, "augment changes its inputs in place; expected new tensors.")
    if not _equal(_only(1, together)[0], alone):
        remedy = "expected random numbers from its second argument, one by one"
        raise _error(task, f"augment changes an example by the others of its batch, or by chance; {remedy}.")


def _equal(one: Structure, other: Structure) -> bool:
    return all(torch.equal(*pair) for pair in zip(tensors(one), tensors(other), strict=True))


def _only(n: int, *structures: Structure) -> list[Structure]:
    """One of the examples, as a batch."""
    return [map_tensors(lambda leaf: leaf[n : n + 1], structure) for structure in structures]
