"""Options that several networks share, and what is wrong with bad ones."""

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
    """Refuses unknown norms, and groups that `channels` cannot be divided into."""
    if norm not in ("group", "batch"):
        raise refusal(model, f"unknown norm '{norm}': {nearest(str(norm), ('group', 'batch'))}")
    if norm == "group":
        require_counts(model, groups=groups)
        if channels % groups:
            raise refusal(model, f"{groups} groups do not divide {channels} channels; expected a divisor.")


def normalisation(norm: Norm, channels: int, groups: int) -> nn.Module:
    """Group norm, or batch norm by the statistics of each batch alone."""
    if norm == "group":
        return nn.GroupNorm(groups, channels)
    return nn.BatchNorm2d(channels, track_running_stats=False)


def refusal(model: nn.Module, problem: str) -> UserError:
    """What to raise when a network cannot be built."""
    return UserError(f"model '{type(model).__name__}': {problem}")
