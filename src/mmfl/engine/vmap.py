"""Operators that have a form of their own under vmap, for all clients of a cohort at once."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.engine.gpu import kernels


def with_cohort_form(alone: Callable[..., Tensor], cohort: Callable[..., Tensor], *args: Any) -> Any:
    """Calls `alone` on the arguments; under vmap over clients, `cohort` on those of all clients, with clients as the
    first dimension of every tensor. Only `cohort` is differentiated."""
    return _CohortForm.apply(alone, cohort, *args)  # type: ignore[no-untyped-call]


class _CohortForm(torch.autograd.Function):
    @staticmethod
    def forward(alone: Callable[..., Tensor], cohort: Callable[..., Tensor], *args: Any) -> Tensor:
        return alone(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, alone: Any, cohort: Callable[..., Tensor], *args: Any) -> Any:
        return cohort(*clients_first(info, in_dims[2:], args)), 0


def clients_first(info: Any, in_dims: Any, args: Any) -> list[Any]:
    """Arguments under vmap with clients as the first dimension of every tensor; what has no such dimension is the same
    for all clients."""
    first = list(args)
    for n, (arg, dim) in enumerate(zip(args, in_dims, strict=True)):
        if isinstance(arg, Tensor):
            first[n] = arg.expand(info.batch_size, *arg.shape) if dim is None else arg.movedim(dim, 0)
    return first


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    """In place of `F.group_norm`, whose arguments it takes and which torch cannot batch over clients."""
    return with_cohort_form(F.group_norm, _cohort_group_norm, input, num_groups, weight, bias, eps)


def _cohort_group_norm(input: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Inputs [C, n, channels, ...], a scale and a shift per client and channel: torch's own operator on the examples of
    all clients, scaled by client afterwards; on a GPU, for images, one fused kernel."""
    if input.dim() == 5 and kernels.usable(input, weight, bias):
        from mmfl.engine.gpu.kernels.group_norm import CohortGroupNorm

        return CohortGroupNorm.apply(input, weight, bias, groups, eps)  # type: ignore[no-any-return, no-untyped-call]
    normed = F.group_norm(input.flatten(0, 1), groups, None, None, eps).view(input.shape)
    by_channel = (len(input), 1, -1, *(1 for _ in input.shape[3:]))
    if weight is not None and bias is not None:
        return torch.addcmul(bias.reshape(by_channel), normed, weight.reshape(by_channel))
    normed = normed if weight is None else normed * weight.reshape(by_channel)
    return normed if bias is None else normed + bias.reshape(by_channel)
