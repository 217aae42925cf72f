"""Options that several networks share, and their checks."""

from typing import Literal

from torch import nn

from mmfl.checks import check_whole
from mmfl.errors import UserError, nearest

Norm = Literal["group", "batch"]


def require_counts(model: nn.Module, **counts: int) -> None:
    """Refuses numbers of units, channels or pixels that are not at least 1."""
    for name, count in counts.items():
        check_whole(f"model '{type(model).__name__}'", name, count)


def require_norm(model: nn.Module, norm: str, groups: int, channels: int) -> None:
    """Refuses unknown norms, and numbers of groups that do not divide `channels`."""
    if norm not in ("group", "batch"):
        raise model_error(model, f"unknown norm '{norm}': {nearest(str(norm), ('group', 'batch'))}")
    if norm == "group":
        require_counts(model, groups=groups)
        if channels % groups:
            raise model_error(model, f"{groups} groups do not divide {channels} channels; expected a divisor.")


def normalisation(norm: Norm, channels: int, groups: int) -> nn.Module:
    """Group norm, or batch norm without running statistics."""
    if norm == "group":
        return nn.GroupNorm(groups, channels)
    return nn.BatchNorm2d(channels, track_running_stats=False)


def model_error(model: nn.Module, problem: str) -> UserError:
    """The error for a network that cannot be built."""
    return UserError(f"model '{type(model).__name__}': {problem}")
