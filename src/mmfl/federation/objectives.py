"""Losses and metrics: functions of a model's outputs and the targets that return one value per example.

Any function `f(outputs, targets)` will do whose result has the example as its first dimension; further dimensions (the
tokens of a window, the outputs of a regression) are averaged.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Objective = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Classification: outputs are logits [examples, classes], targets class numbers [examples]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Regression: half the squared distance, averaged over output dimensions."""
    return 0.5 * (outputs - _reshape_like(targets, outputs)).square()


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sequence modelling: logits [examples, time, vocabulary], targets [examples, time]."""
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")


def value(outputs: Tensor, targets: Tensor) -> Tensor:
    """For models that compute their own loss: the output itself."""
    return outputs


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of correct predictions, for classes [examples, classes] and tokens [examples, time, vocabulary]."""
    if outputs.dim() != targets.dim() + 1:
        raise ValueError(
            "accuracy needs scores per class and class numbers as targets; choose a metric such as absolute_error"
        )
    return (outputs.argmax(-1) == targets).float()


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
    """One number per example: the mean over all dimensions but the first."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def lower_is_better(metric: Objective) -> bool:
    """Whether the metric is an error rather than a score; your own functions can set `lower_is_better = True`."""
    return metric in (absolute_error, squared_error, value) or bool(getattr(metric, "lower_is_better", False))
