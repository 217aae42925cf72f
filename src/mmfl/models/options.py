"""Options that several networks share, and their checks."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from mmfl.checks import check_whole
from mmfl.errors import UserError, nearest

Norm = Literal["group", "batch"]
NormLayer = Callable[[int], nn.Module]
"""Makes the norm of a number of channels."""


def require_counts(model: nn.Module, **counts: int) -> None:
    """Refuses numbers of units, channels or pixels that are not at least 1."""
    for name, count in counts.items():
        check_whole(f"model '{type(model).__name__}'", name, count)


def norm_layer(model: nn.Module, norm: str, groups: int, channels: int) -> NormLayer:
    """Group norm, whose groups must divide `channels`, or batch norm without running statistics."""
    if norm == "batch":
        return partial(nn.BatchNorm2d, track_running_stats=False)
    if norm != "group":
        raise model_error(model, f"unknown norm '{norm}': {nearest(str(norm), ('group', 'batch'))}")
    require_counts(model, groups=groups)
    if channels % groups:
        raise model_error(model, f"{groups} groups do not divide {channels} channels; expected a divisor.")
    return partial(nn.GroupNorm, groups)


def model_error(model: nn.Module, problem: str) -> UserError:
    """The error for a network that cannot be built."""
    return UserError(f"model '{type(model).__name__}': {problem}")
