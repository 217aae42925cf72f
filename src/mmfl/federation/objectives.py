"""Losses and metrics: functions of a model's outputs and the targets that return one value per example.

Any function `f(outputs, targets)` will do whose result has the example as its first dimension; further dimensions (the
tokens of a window, the outputs of a regression) are averaged. Outputs and targets are what the model returns and the
data has: tensors, or structures of tensors such as `outputs["logits"]`.

Options are keywords, named as in torch: `partial(cross_entropy, label_smoothing=0.1)`. A client's loss is the mean of
these values over its examples, and never divided by a sum of weights: class weights, example weights and ignored
examples change how much an example counts, not the number of examples.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.data.structure import Structure

Objective = Callable[[Structure, Structure], Tensor]
IGNORE = -100  # torch's own mark of targets that do not count


def cross_entropy(
    outputs: Tensor,
    targets: Tensor,
    *,
    weight: Sequence[float] | Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE,
) -> Tensor:
    """Classification: outputs are logits [examples, classes], targets class numbers [examples]. `weight` has one number
    per class; an example whose target is `ignore_index` has loss 0."""
    return F.cross_entropy(
        outputs,
        targets,
        _constants(weight, outputs),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )


def binary_cross_entropy(
    outputs: Tensor,
    targets: Tensor,
    *,
    weight: Sequence[float] | Tensor | None = None,
    pos_weight: Sequence[float] | Tensor | None = None,
) -> Tensor:
    """Several labels per example: logits and targets of 0 or 1, [examples, labels]. `weight` and `pos_weight`, which
    counts for targets of 1 alone, have one number per label."""
    targets = _reshape_like(targets, outputs).to(outputs)
    weights, positive = _constants(weight, outputs), _constants(pos_weight, outputs)
    return F.binary_cross_entropy_with_logits(outputs, targets, weights, pos_weight=positive, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Regression: half the squared distance, averaged over output dimensions."""
    return 0.5 * (outputs - _reshape_like(targets, outputs)).square()


def next_token(
    outputs: Tensor,
    targets: Tensor,
    *,
    weight: Sequence[float] | Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE,
) -> Tensor:
    """Sequence modelling: logits [examples, time, vocabulary], targets [examples, time]. The loss of an example is the
    mean over its tokens that count: those whose target is not `ignore_index`, which marks padding."""
    losses = cross_entropy(
        outputs.transpose(1, 2), targets, weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index
    )
    return mean_of_counted(losses, targets, ignore_index)


def weighted(outputs: Structure, targets: dict[str, Any], *, inner: Objective = cross_entropy) -> Tensor:
    """Examples that count more than others: targets are `{"target": ..., "weight": [examples]}`, and the value of an
    example is that of `inner` times its weight."""
    if not isinstance(targets, dict) or not {"target", "weight"} <= set(targets):
        raise ValueError('weighted needs targets {"target": ..., "weight": ...}')
    weights: Tensor = targets["weight"]
    return per_example(inner(outputs, targets["target"])) * weights


def value(outputs: Tensor, targets: Tensor) -> Tensor:
    """For models that compute their own loss: the output itself."""
    return outputs


def accuracy(outputs: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Share of correct predictions, for classes [examples, classes] and tokens [examples, time, vocabulary]; of an
    example's tokens, those whose target is not `ignore_index` count."""
    if outputs.dim() != targets.dim() + 1:
        raise ValueError(
            "accuracy needs scores per class and class numbers as targets; choose a metric such as absolute_error"
        )
    correct = (outputs.argmax(-1) == targets).float()
    return correct if correct.dim() == 1 else mean_of_counted(correct, targets, ignore_index)


def binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Several labels per example: the share of labels on whose side the logit is."""
    return ((outputs > 0) == (_reshape_like(targets, outputs) > 0.5)).float()


def unweighted(outputs: Structure, targets: dict[str, Any], *, inner: Objective = accuracy) -> Tensor:
    """The value of `inner` on targets of `weighted`, whose weights are ignored."""
    return inner(outputs, targets["target"])


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Regression: the absolute error (lower is better)."""
    return (outputs - _reshape_like(targets, outputs)).abs()


def _reshape_like(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the shape of the outputs, if they differ only in dimensions of 1 or in an example being flattened."""
    target_lengths, output_lengths = (
        [length for length in tensor.shape[1:] if length != 1] for tensor in (targets, outputs)
    )
    if target_lengths != output_lengths and min(len(target_lengths), len(output_lengths)) > 1:
        raise ValueError(f"targets of shape {tuple(targets.shape)} for outputs of shape {tuple(outputs.shape)}")
    return targets.reshape(outputs.shape)


def mean_of_counted(values: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> Tensor:
    """The mean of each example's values [examples, time] where the target counts; 0 if none does."""
    counts = (targets != ignore_index).flatten(1)
    return (values.flatten(1) * counts).sum(1) / counts.sum(1).clamp(min=1)


def _constants(values: Sequence[float] | Tensor | None, like: Tensor) -> Tensor | None:
    """Numbers as a tensor with the type and device of another; copied to the device once."""
    if values is None:
        return None
    return _copy(values if isinstance(values, Tensor) else tuple(values), like.dtype, like.device)


@cache
def _copy(values: Tensor | tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=dtype, device=device)


LOSSES: dict[str, Objective] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
    "next_token": next_token,
    "weighted": weighted,
    "value": value,
}


def per_example(values: Tensor) -> Tensor:
    """One number per example: the mean over all dimensions but the first."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def options_of(objective: Objective) -> tuple[Objective, dict[str, Any]]:
    """A loss or metric without its options, and these: of `partial(f, a=1)`, f and `{"a": 1}`."""
    return (objective.func, objective.keywords) if isinstance(objective, partial) else (objective, {})


def counted_examples(metric: Objective, targets: Structure) -> Tensor | None:
    """Which examples count in the mean of a metric, [examples]: those with a target that it does not ignore; None for
    all."""
    plain, options = options_of(metric)
    if plain is unweighted:
        return counted_examples(options.get("inner", accuracy), targets["target"])
    ignored = options.get("ignore_index", IGNORE) if plain is accuracy else getattr(plain, "ignore_index", None)
    if ignored is None:
        return None
    counted: Tensor = (targets != ignored).reshape(len(targets), -1).any(1)
    return counted


def lower_is_better(metric: Objective) -> bool:
    """Whether the metric is an error rather than a score; your own functions can set `lower_is_better = True`."""
    plain, options = options_of(metric)
    if plain is unweighted:
        return lower_is_better(options.get("inner", accuracy))
    return plain in (absolute_error, squared_error, value) or bool(getattr(plain, "lower_is_better", False))
