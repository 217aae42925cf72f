"""Metrics of a whole test set: those that are not a mean over its examples, such as macro F1, perplexity and AUC.

`Task(metric=..., metrics=[...])` takes them or their names. Your own derive from `AdditiveMetric` or
`CollectedMetric`. Examples and tokens whose target is `ignore_index` do not count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.checks import check_whole
from mmfl.federation.metric_kinds import AdditiveMetric, CollectedMetric, Mean, Meter, TorchMetric
from mmfl.federation.objectives import (
    IGNORE,
    absolute_error,
    accuracy,
    binary_accuracy,
    mean_of_counted,
    squared_error,
    unweighted,
    value,
)

__all__ = [
    "AUC",
    "AdditiveMetric",
    "BalancedAccuracy",
    "CollectedMetric",
    "Confusion",
    "MacroF1",
    "Perplexity",
    "RootMeanSquaredError",
    "TopK",
    "TorchMetric",
]
_MAX_CLASSES = 1000  # of a confusion matrix, whose entries are their square


@dataclass(frozen=True)
class TopK:
    """Share of examples whose class is among the `k` with the highest scores."""

    k: int = 5
    ignore_index: int = IGNORE

    def __post_init__(self) -> None:
        check_whole("metric 'top_k'", "k", self.k)

    @property
    def name(self) -> str:
        """`top_5` for k = 5."""
        return f"top_{self.k}"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 where it is, else 0."""
        classes = _count_classes(self.name, outputs, targets)
        if self.k > classes:
            raise ValueError(f"{self.name} needs at least {self.k} classes; the model has {classes}")
        found = (outputs.topk(self.k, dim=-1).indices == targets[..., None]).any(-1).float()
        return found if found.dim() == 1 else mean_of_counted(found, targets, self.ignore_index)


@dataclass(frozen=True)
class _ClassCounts(AdditiveMetric):
    """What is computed from three counts of each class: targets, predictions, and those where both agree."""

    ignore_index: int = IGNORE

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The counts one after another, [examples, 3 classes]."""
        classes = _count_classes(self.name, outputs, targets)
        targets, predicted = (labels.reshape(len(targets), -1) for labels in (targets, outputs.argmax(-1)))
        counts = outputs.new_zeros(len(targets), 3 * classes)
        counted = targets != self.ignore_index
        agreed = (counted & (targets == predicted)).to(counts.dtype)
        targets, counted = torch.where(counted, targets, 0), counted.to(counts.dtype)
        counts.scatter_add_(1, targets, counted)
        counts.scatter_add_(1, classes + predicted, counted)
        return counts.scatter_add_(1, 2 * classes + targets, agreed)


class MacroF1(_ClassCounts):
    """Mean over classes of F1, the harmonic mean of precision and recall; classes that occur neither among targets nor
    among predictions are left out."""

    name = "macro_f1"

    def value(self, sums: Tensor) -> Tensor:
        """The mean of 2 TP / (targets + predictions)."""
        targets, predicted, agreed = sums.tensor_split(3, dim=-1)
        return (2 * agreed / (targets + predicted)).nanmean(-1)


class BalancedAccuracy(_ClassCounts):
    """Mean over classes of the share of their examples that are recognised; classes without examples are left out."""

    name = "balanced_accuracy"

    def value(self, sums: Tensor) -> Tensor:
        """The mean of TP / targets."""
        targets, _, agreed = sums.tensor_split(3, dim=-1)
        return (agreed / targets).nanmean(-1)


@dataclass(frozen=True)
class Confusion(AdditiveMetric):
    """Confusion matrix: how many examples of each class (rows) are taken for each class (columns)."""

    ignore_index: int = IGNORE
    name = "confusion"

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A count in the cell of class and prediction, [examples, classes * classes]."""
        cells, classes = self._cells(outputs, targets)
        counts = outputs.new_zeros(len(targets), classes * classes)
        return counts.scatter_add_(1, cells.clamp(min=0), (cells >= 0).to(counts.dtype))

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The counts of all examples, without a matrix for each."""
        cells, classes = self._cells(outputs, targets)
        return torch.bincount(cells[cells >= 0], minlength=classes * classes).double()

    def value(self, sums: Tensor) -> Tensor:
        """The matrix [..., classes, classes]."""
        classes = round(sums.shape[-1] ** 0.5)
        return sums.reshape(*sums.shape[:-1], classes, classes)

    def _cells(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        classes = _count_classes(self.name, outputs, targets)
        if classes > _MAX_CLASSES:
            raise ValueError(f"a confusion matrix of {classes:,} classes is too large; expected at most {_MAX_CLASSES}")
        cells = torch.where(targets == self.ignore_index, -1, targets * classes + outputs.argmax(-1))
        return cells.reshape(len(targets), -1), classes


@dataclass(frozen=True)
class Perplexity(AdditiveMetric):
    """The exponential of the mean cross-entropy of classes or tokens (lower is better)."""

    ignore_index: int = IGNORE
    name = "perplexity"
    lower_is_better = True

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of an example, and of how many tokens."""
        _count_classes(self.name, outputs, targets)
        ignored = self.ignore_index
        entropy = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=ignored, reduction="none")
        parts = (entropy.double(), (targets != ignored).double())
        return torch.stack([part.reshape(len(targets), -1).sum(1) for part in parts], dim=1)

    def value(self, sums: Tensor) -> Tensor:
        """exp(mean)."""
        return (sums[..., 0] / sums[..., 1]).exp()


class RootMeanSquaredError(AdditiveMetric):
    """Regression: the root of the mean squared error (lower is better)."""

    name = "rmse"
    lower_is_better = True

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error, averaged over output dimensions, and 1."""
        return Mean(squared_error).statistics(outputs, targets)

    def value(self, sums: Tensor) -> Tensor:
        """The root; `squared_error` is half the square."""
        return (2 * sums[..., 0] / sums[..., 1]).sqrt()


@dataclass(frozen=True)
class AUC(CollectedMetric):
    """Area under the ROC curve. With several classes: of each class against the others, by softmax, and the mean over
    the classes that occur. With one output per label: of each label, by its output. Undefined if all examples are of
    one class."""

    ignore_index: int = IGNORE
    name = "auc"

    def start(self) -> Meter:
        """No scores yet."""
        return _Scores(self.ignore_index)


@dataclass
class _Scores:
    """Scores and whether each is of a positive example, by batch, [examples, labels]."""

    ignore_index: int
    scores: list[Tensor] = field(default_factory=list)
    positive: list[Tensor] = field(default_factory=list)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """One column for each class or label."""
        if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] > 1:
            classes = _count_classes("auc", outputs, targets)
            counted = targets != self.ignore_index
            self.scores.append(outputs[counted].double().softmax(-1))
            self.positive.append(F.one_hot(targets[counted], classes).bool())
        elif outputs.numel() == targets.numel():
            if (targets == self.ignore_index).any():
                raise ValueError(
                    f"auc of labels cannot ignore targets of {self.ignore_index}; leave them out of the data"
                )
            self.scores.append(outputs.double().reshape(len(outputs), -1))
            self.positive.append(targets.reshape(len(targets), -1) > 0.5)
        else:
            raise ValueError("auc needs scores per class and class numbers as targets, or one output per label")

    def compute(self) -> Tensor:
        """By ranks: the share of pairs (positive, negative) in the right order; ties count half."""
        scores, positive = torch.cat(self.scores).T.contiguous(), torch.cat(self.positive).T
        ordered = scores.sort(-1).values
        below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
        ranks = (below + up_to + 1).double() / 2
        positives = positive.sum(-1)
        wins = (ranks * positive).sum(-1) - positives * (positives + 1) / 2
        area = (wins / (positives * (~positive).sum(-1))).nanmean()
        return area if scores.isfinite().all() else torch.full_like(area, torch.nan)


def _count_classes(name: str, outputs: Tensor, targets: Tensor) -> int:
    if outputs.dim() != targets.dim() + 1 or targets.is_floating_point() or outputs.shape[-1] < 2:
        raise ValueError(f"{name} needs scores per class and class numbers as targets")
    return outputs.shape[-1]


METRICS: Mapping[str, Callable[..., Any]] = {
    "accuracy": accuracy,
    "binary_accuracy": binary_accuracy,
    "absolute_error": absolute_error,
    "squared_error": squared_error,
    "unweighted": unweighted,
    "value": value,
    "auc": AUC,
    "balanced_accuracy": BalancedAccuracy,
    "confusion": Confusion,
    "macro_f1": MacroF1,
    "perplexity": Perplexity,
    "rmse": RootMeanSquaredError,
    "top_k": TopK,
}
"""Metrics by name: functions of one value per example, and classes."""
