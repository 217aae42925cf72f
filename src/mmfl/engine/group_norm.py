"""Group norm for a cohort, which torch cannot batch over clients."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.engine.gpu import kernels
from mmfl.engine.vmap import clients_first


class GroupNorm(torch.autograd.Function):
    """Group norm whose vmap over clients runs torch's own operator on the examples of all clients, and scales by
    client afterwards; on a GPU, for images, it is one fused kernel."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
        """The plain norm, outside of a cohort."""
        return F.group_norm(input, groups, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: only the vmapped form is differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The cohort's form: inputs [C, n, channels, ...], a scale and a shift per client and channel."""
        input, weight, bias = clients_first(info, in_dims, args[:3])
        if input.dim() == 5 and kernels.usable(input, weight, bias):
            from mmfl.engine.gpu.kernels.group_norm import CohortGroupNorm

            return CohortGroupNorm.apply(input, weight, bias, *args[3:]), 0  # type: ignore[no-untyped-call]
        normed = F.group_norm(input.flatten(0, 1), args[3], None, None, args[4]).view(input.shape)
        by_channel = (len(input), 1, -1, *(1 for _ in input.shape[3:]))
        if weight is not None and bias is not None:
            return torch.addcmul(bias.reshape(by_channel), normed, weight.reshape(by_channel)), 0
        normed = normed if weight is None else normed * weight.reshape(by_channel)
        return (normed if bias is None else normed + bias.reshape(by_channel)), 0
