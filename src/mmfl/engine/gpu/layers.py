"""Layers of a cohort on a GPU: linear layers and convolutions as batched matrix products, and max-pooling."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.engine.factored import GradientFactors
from mmfl.engine.gpu import kernels
from mmfl.engine.vmap import with_cohort_form

_MAX_KEPT_PATCHES = 2 << 30  # bytes


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

    A cohort's convolution is a batched matrix product. Torch's vmap would make it a grouped convolution, which is slow
    with many groups of few channels.
    """
    if groups != 1 or pair(dilation) != (1, 1) or isinstance(padding, str) or input.dim() != 4:
        return NotImplemented
    return with_cohort_form(F.conv2d, _cohort_convolution, input, weight, bias, pair(stride), pair(padding))


def _cohort_convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Inputs [C, n, channels, h, w] and a kernel per client: unfolded (im2col), or by a Triton kernel that never stores
    the unfolded inputs."""
    function: Any = UnfoldedConvolution
    (ph, pw), (height, width) = padding, input.shape[-2:]
    size = input.shape[1] * weight.shape[1] * (height + 2 * ph) * (width + 2 * pw)
    if kernels.usable(input, weight, bias, size=size):
        from mmfl.engine.gpu.kernels.convolution import CohortConvolution as function  # noqa: N813
    return function.apply(input, weight, bias, stride, padding)  # type: ignore[no-any-return]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None, factors: GradientFactors | None) -> Any:
    """In place of `F.linear`; `NotImplemented` where nobody collects the factors of its gradient."""
    if input.dim() < 2 or factors is None:
        return NotImplemented
    return with_cohort_form(lambda *args: F.linear(*args[:3]), _cohort_linear, input, weight, bias, factors)


def _cohort_linear(input: Tensor, weight: Tensor, bias: Tensor | None, factors: GradientFactors) -> Tensor:
    """Inputs [C, ..., inputs] times a weight per client [C, outputs, inputs], plus a bias [C, outputs]."""
    rows = input.reshape(len(input), -1, input.shape[-1])
    n = factors.find(weight, input, bias)
    kernel = (weight if n is None else weight.detach()).transpose(1, 2)
    outputs = torch.bmm(rows, kernel) if bias is None else torch.baddbmm(bias[:, None], rows, kernel)
    if n is not None:
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


def pair(value: Any) -> tuple[int, int]:
    """A size, stride or padding for height and width."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


class UnfoldedConvolution(torch.autograd.Function):
    """Convolution of input [C, n, channels, h, w] with a weight per client [C, out, channels, kh, kw].

    The input is unfolded into patches (im2col), channels last, so that forward and backward are batched matrix
    products. Patches take kh * kw times the memory of the input: large ones are unfolded again for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        """Patches times weights."""
        patches, (height, width) = _unfold(input, weight.shape[-2:], stride, padding)
        ctx.save_for_backward(input, weight)
        ctx.stride, ctx.padding, ctx.biased = stride, padding, bias is not None
        ctx.patches = patches if patches.nbytes <= _MAX_KEPT_PATCHES else None
        kernel = _kernel_rows(weight).transpose(1, 2)
        product = torch.bmm(patches, kernel) if bias is None else torch.baddbmm(bias[:, None], patches, kernel)
        return product.view(*input.shape[:2], height, width, weight.shape[1]).movedim(-1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients by input, weight and bias, where needed."""
        input, weight = ctx.saved_tensors
        clients, out, channels, kh, kw = weight.shape
        height, width = grads[0].shape[-2:]
        grad = grads[0].movedim(2, -1).reshape(clients, -1, out)
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[1]:
            patches = ctx.patches
            if patches is None:
                patches, _ = _unfold(input, (kh, kw), ctx.stride, ctx.padding)
            grad_weight = torch.bmm(grad.transpose(1, 2), patches).view(clients, out, kh, kw, channels).movedim(-1, 2)
        if ctx.biased and ctx.needs_input_grad[2]:
            grad_bias = grad.sum(1)
        if ctx.needs_input_grad[0]:
            pieces = torch.bmm(grad, _kernel_rows(weight)).view(*input.shape[:2], height, width, kh, kw, channels)
            (sh, sw), (ph, pw) = ctx.stride, ctx.padding
            h, w = input.shape[-2:]
            padded = grad.new_zeros(*input.shape[:2], h + 2 * ph, w + 2 * pw, channels)
            for a in range(kh):
                for b in range(kw):
                    padded[:, :, a : a + sh * height : sh, b : b + sw * width : sw] += pieces[..., a, b, :]
            grad_input = padded[:, :, ph : ph + h, pw : pw + w].movedim(-1, 2)
        return grad_input, grad_weight, grad_bias, None, None


def _kernel_rows(weight: Tensor) -> Tensor:
    """Weights [C, out, channels, kh, kw] as [C, out, kh * kw * channels], in the order of patches."""
    return weight.movedim(2, -1).flatten(2)


def _unfold(
    input: Tensor, kernel: Sequence[int], stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """Unfolds the input [C, n, channels, h, w] into patches [C, n * height * width, kh * kw * channels]."""
    x = input.movedim(2, -1)
    if padding != (0, 0):
        x = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])
    height, width = windows.shape[2:4]
    patches = windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, kernel[0] * kernel[1] * x.shape[-1])
    return patches, (height, width)
