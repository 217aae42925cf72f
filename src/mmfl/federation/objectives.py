"""Losses and metrics: functions of a model's outputs and the targets that give one value per example.

A user's own function fits as it is: `f(outputs, targets)` with the example in the first dimension of the result;
further dimensions (the tokens of a window, the outputs of a regression) are averaged.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Classification: outputs are logits [examples, classes], targets class numbers [examples]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Regression: half the squared distance, averaged over output dimensions."""
    return 0.5 * (outputs - _like(targets, outputs)).square()


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sequence modelling: logits [examples, time, vocabulary], targets [examples, time]."""
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")


def value(outputs: Tensor, targets: Tensor) -> Tensor:
    """For models that compute their own loss: the output itself."""
    return outputs


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of right answers, for classes [examples, classes] and tokens [examples, time, vocabulary]."""
    if outputs.dim() != targets.dim() + 1:
        raise ValueError(
            "accuracy compares scores of classes with class numbers; choose a metric such as absolute_error"
        )
    return (outputs.argmax(-1) == targets).float()


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Regression: the absolute error (lower is better)."""
    return (outputs - _like(targets, outputs)).abs()


def _like(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the shape of the outputs, where that changes nothing but dimensions of 1 or flattens an example."""
    one, other = ([length for length in tensor.shape[1:] if length != 1] for tensor in (targets, outputs))
    if one != other and min(len(one), len(other)) > 1:
        raise ValueError(f"targets of shape {tuple(targets.shape)} for outputs of shape {tuple(outputs.shape)}")
    return targets.reshape(outputs.shape)


LOSSES: dict[str, Objective] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "next_token": next_token,
    "value": value,
}
METRICS: dict[str, Objective] = {
    "accuracy": accuracy,
    "absolute_error": absolute_error,
    "squared_error": squared_error,
    "value": value,
}


def per_example(values: Tensor) -> Tensor:
    """One number per example: everything past the first dimension averaged."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def lower_is_better(metric: Objective) -> bool:
    """Whether the metric is an error rather than a score (own functions say so by `lower_is_better = True`)."""
    return metric in (absolute_error, squared_error, value) or bool(getattr(metric, "lower_is_better", False))


def finite(values: Tensor) -> bool:
    """Whether every value is a number; integer data always is."""
    return not values.is_floating_point() or bool(torch.isfinite(values).all())
