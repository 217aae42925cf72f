"""Layers that have a form of their own under vmap, for all clients of a cohort at once."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.engine.factored import GradientFactors
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


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """In place of `torch.conv2d`, whose arguments it takes; `NotImplemented` for those it cannot handle.

    Torch's vmap makes a cohort's convolution a grouped one, which is slow with many groups of few channels.
    """
    if groups != 1 or pair(dilation) != (1, 1) or isinstance(padding, str) or input.dim() != 4:
        return NotImplemented
    return with_cohort_form(F.conv2d, _cohort_convolution, input, weight, bias, pair(stride), pair(padding))


def _cohort_convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Inputs [C, n, channels, h, w] and a kernel per client: a Triton kernel, or what torch makes of it."""
    (ph, pw), (height, width) = padding, input.shape[-2:]
    size = input.shape[1] * weight.shape[1] * (height + 2 * ph) * (width + 2 * pw)
    if kernels.usable(input, weight, bias, size=size):
        from mmfl.engine.gpu.kernels.convolution import CohortConvolution

        return CohortConvolution.apply(input, weight, bias, stride, padding)  # type: ignore[no-any-return, no-untyped-call]
    grouped = torch.vmap(F.conv2d, in_dims=(0, 0, None if bias is None else 0, None, None))
    return grouped(input, weight, bias, stride, padding)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None, factors: GradientFactors | None) -> Any:
    """In place of `F.linear`, with the factors of its gradient if they are collected.

    Torch's vmap would repeat a client's weight for every time step of sequences that are not stored example by example.
    """
    if input.dim() < 2:
        return NotImplemented
    return with_cohort_form(lambda *args: F.linear(*args[:3]), _cohort_linear, input, weight, bias, factors)


def _cohort_linear(input: Tensor, weight: Tensor, bias: Tensor | None, factors: GradientFactors | None) -> Tensor:
    """Inputs [C, ..., inputs] times a weight per client [C, outputs, inputs], plus a bias [C, outputs]."""
    n = None if factors is None else factors.find(weight, input, bias)
    if n is None and weight.stride(0) == 0:  # a frozen weight, the same for all clients: one product for all
        outputs = F.linear(input, weight[0])
        return outputs if bias is None else outputs + bias.view(len(bias), *(1 for _ in input.shape[2:]), -1)
    rows = input.reshape(len(input), -1, input.shape[-1])
    kernel = (weight if n is None else weight.detach()).transpose(1, 2)
    outputs = torch.bmm(rows, kernel) if bias is None else torch.baddbmm(bias[:, None], rows, kernel)
    if factors is not None and n is not None:
        factors.add(n, rows, outputs)
    return outputs.view(*input.shape[:-1], weight.shape[1])


def max_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """In place of `F.max_pool2d`, whose arguments it takes; `NotImplemented` where windows overlap or have gaps."""
    window = pair(kernel_size)
    adjacent = pair(stride or window) == window and pair(padding) == (0, 0) and pair(dilation) == (1, 1)
    if not adjacent or return_indices or input.dim() != 4:
        return NotImplemented
    return with_cohort_form(_max_pool, _cohort_max_pool, input, window, ceil_mode)


def _max_pool(input: Tensor, window: tuple[int, int], ceil: bool) -> Tensor:
    return F.max_pool2d(input, window, ceil_mode=ceil)


def _cohort_max_pool(input: Tensor, window: tuple[int, int], ceil: bool) -> Tensor:
    """Inputs [C, n, channels, h, w]: a Triton kernel, or torch's own operator on the examples of all clients."""
    if kernels.usable(input) and max(window) < 16:
        from mmfl.engine.gpu.kernels.pooling import CohortMaxPool

        sizes = [(size + (side - 1) * ceil) // side for size, side in zip(input.shape[3:], window, strict=True)]
        return CohortMaxPool.apply(input, window, tuple(sizes))  # type: ignore[no-any-return, no-untyped-call]
    pooled = _max_pool(input.flatten(0, 1), window, ceil)
    return pooled.view(*input.shape[:2], *pooled.shape[1:])


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


def pair(value: Any) -> tuple[int, int]:
    """A size, stride or padding for height and width."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))
