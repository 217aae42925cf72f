"""Group norm for a cohort, which torch cannot batch over clients."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.engine.gpu import kernels
from mmfl.engine.vmap import with_cohort_form


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    """In place of `F.group_norm`, whose arguments it takes."""
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
