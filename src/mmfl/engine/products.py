"""Layers in the form that suits a cohort: linear ones and convolutions as batched matrix products, gradients of weights
left as factors, group norm and max-pooling as one kernel."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from mmfl.engine.gpu import kernels

_KEPT_PATCHES = 2 << 30  # bytes


@dataclass(frozen=True, eq=False)
class Product:
    """The gradient of a linear layer's weight, not multiplied out: by outputs, [jobs, rows, outputs], times inputs.

    The weight of a wide layer is far larger than a batch: SGD adds the product to it without ever writing it down.
    """

    outputs: Tensor
    inputs: Tensor

    def dense(self) -> Tensor:
        """The gradient itself, [jobs, outputs * inputs]."""
        return torch.bmm(self.outputs.float().transpose(1, 2), self.inputs.float()).flatten(1)

    def subtract(self, rate: Tensor, weights: Tensor) -> None:
        """Takes `rate` [jobs, 1] times the product off the weights [jobs, outputs * inputs]."""
        matrices = weights.view(len(weights), self.outputs.shape[2], self.inputs.shape[2])
        outputs, inputs = self.outputs.to(weights.dtype), self.inputs.to(weights.dtype)
        matrices.baddbmm_((outputs * rate[:, :, None]).transpose(1, 2), inputs, alpha=-1)


class Factors:
    """What linear layers leave behind in a forward pass so that their weights' gradients come as products.

    For each call: which parameter was the weight, its inputs [jobs, rows, inputs], and where in the graph the
    gradient by its outputs arises. The edge is noted at once, before anything changes the outputs in place.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        self._place = {p.data_ptr(): (p.shape[-2:], n) for n, p in enumerate(parameters) if p.requires_grad}
        self.calls: list[tuple[int, Tensor, GradientEdge]] = []

    def watch(self, module: nn.Module) -> None:
        """Lets the linear layers of a client's own module leave their factors here."""
        for part in module.modules():
            if type(part) is nn.Linear and "forward" not in vars(part):
                part.forward = partial(self._linear, part)  # type: ignore[method-assign]

    def _linear(self, layer: nn.Linear, input: Tensor) -> Tensor:
        n = self.find(layer.weight, input, layer.bias)
        if n is None:
            return F.linear(input, layer.weight, layer.bias)
        outputs = F.linear(input, layer.weight.detach(), layer.bias)
        self.keep(n, input.reshape(1, -1, input.shape[-1]), outputs)
        return outputs

    def find(self, weight: Tensor, *others: Tensor | None) -> int | None:
        """The number of the parameter that is this weight; none if it is not one itself, or if nothing else would
        carry a gradient to the layer's outputs."""
        shape, n = self._place.get(weight.data_ptr(), (None, 0))
        carried = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in others)
        return n if carried and shape == weight.shape[-2:] and weight.requires_grad else None

    def keep(self, n: int, rows: Tensor, outputs: Tensor) -> None:
        """Notes a call of a layer whose weight is parameter `n`."""
        self.calls.append((n, rows.detach(), get_gradient_edge(outputs)))

    def products(self, gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Product]]:
        """The products of all calls since the last time, given the gradients by their outputs."""
        calls, self.calls = self.calls, []
        for (n, rows, _), gradient in zip(calls, gradients, strict=True):
            if gradient is not None:
                yield n, Product(gradient.reshape(*rows.shape[:2], -1), rows)


class Convolution(torch.autograd.Function):
    """A convolution whose vmap over clients is one batched matrix product, not a grouped convolution; where Triton can
    be used, one that never writes its patches down.

    Grouped kernels are slow with many groups of few channels, which is what a cohort of clients makes of them.
    """

    @staticmethod
    def forward(
        input: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        """The plain convolution, outside of a cohort."""
        return F.conv2d(input, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: only the vmapped form is differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The cohort's form, with clients as a leading dimension of input, weight and bias."""
        input, weight, bias = lead(info, in_dims, args[:3])
        function: Any = CohortConvolution
        (ph, pw), (height, width) = args[4], input.shape[-2:]
        size = input.shape[1] * weight.shape[1] * (height + 2 * ph) * (width + 2 * pw)
        if kernels.usable(input, weight, bias, size=size):
            from mmfl.engine.gpu.kernels.convolution import CohortConvolution as function  # noqa: N813
        return function.apply(input, weight, bias, *args[3:]), 0


class Linear(torch.autograd.Function):
    """A linear layer whose vmap over clients is one batched matrix product that leaves its factors behind."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
        """The plain layer, outside of a cohort."""
        return F.linear(input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: only the vmapped form is differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The cohort's form: inputs [C, ..., inputs], a weight and a bias per client."""
        input, weight, bias = lead(info, in_dims, args[:3])
        return cohort_linear(input, weight, bias, args[3]), 0


def cohort_linear(input: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
    """Inputs [C, ..., inputs] times a weight per client [C, outputs, inputs], plus a bias [C, outputs]."""
    rows = input.reshape(len(input), -1, input.shape[-1])
    n = factors.find(weight, input, bias)
    kernel = (weight if n is None else weight.detach()).transpose(1, 2)
    outputs = torch.bmm(rows, kernel) if bias is None else torch.baddbmm(bias[:, None], rows, kernel)
    if n is not None:
        factors.keep(n, rows, outputs)
    return outputs.view(*input.shape[:-1], weight.shape[1])


class GroupNorm(torch.autograd.Function):
    """Group norm whose vmap over clients is torch's own kernel on everybody's examples, scaled by client afterwards;
    or, for images where Triton can be used, one kernel of ours."""

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
        input, weight, bias = lead(info, in_dims, args[:3])
        if input.dim() == 5 and kernels.usable(input, weight, bias):
            from mmfl.engine.gpu.kernels.group_norm import CohortGroupNorm

            return CohortGroupNorm.apply(input, weight, bias, *args[3:]), 0  # type: ignore[no-untyped-call]
        normed = F.group_norm(input.flatten(0, 1), args[3], None, None, args[4]).view(input.shape)
        places = (len(input), 1, -1, *(1 for _ in input.shape[3:]))
        if weight is not None and bias is not None:
            return torch.addcmul(bias.reshape(places), normed, weight.reshape(places)), 0
        normed = normed if weight is None else normed * weight.reshape(places)
        return (normed if bias is None else normed + bias.reshape(places)), 0


class MaxPool(torch.autograd.Function):
    """Max-pooling over windows side by side, whose vmap over clients is torch's own kernel on everybody's examples, or,
    where Triton can be used, one of ours."""

    @staticmethod
    def forward(input: Tensor, window: tuple[int, int], ceil: bool) -> Tensor:
        """The plain operator, outside of a cohort."""
        return F.max_pool2d(input, window, ceil_mode=ceil)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: only the vmapped form is differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The cohort's form: inputs [C, n, channels, h, w]."""
        (input,) = lead(info, in_dims, args[:1])
        window, ceil = args[1:]
        if kernels.usable(input) and max(window) < 16:
            from mmfl.engine.gpu.kernels.pooling import CohortMaxPool

            sizes = [(size + (side - 1) * ceil) // side for size, side in zip(input.shape[3:], window, strict=True)]
            return CohortMaxPool.apply(input, window, tuple(sizes)), 0  # type: ignore[no-untyped-call]
        return F.max_pool2d(input.flatten(0, 1), window, ceil_mode=ceil).unflatten(0, input.shape[:2]), 0


def lead(info: Any, in_dims: Any, tensors: Any) -> list[Any]:
    """Tensors with the clients' dimension first; those without one are the same for all clients."""
    return [
        None if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]


class CohortConvolution(torch.autograd.Function):
    """Convolution of input [C, n, channels, h, w] with a weight per client [C, out, channels, kh, kw].

    Images are laid out as patches, channels last, so that forward and both gradients are batched matrix products.
    Patches take kh * kw times the memory of the input: large ones are not kept but made anew for the backward pass.
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
        patches, (height, width) = _patches(input, weight.shape[-2:], stride, padding)
        ctx.save_for_backward(input, weight)
        ctx.stride, ctx.padding, ctx.biased = stride, padding, bias is not None
        ctx.patches = patches if patches.nbytes <= _KEPT_PATCHES else None
        kernel = _rows(weight).transpose(1, 2)
        product = torch.bmm(patches, kernel) if bias is None else torch.baddbmm(bias[:, None], patches, kernel)
        return product.view(*input.shape[:2], height, width, weight.shape[1]).movedim(-1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of input (where asked for), weight and bias."""
        input, weight = ctx.saved_tensors
        clients, out, channels, kh, kw = weight.shape
        height, width = grads[0].shape[-2:]
        grad = grads[0].movedim(2, -1).reshape(clients, -1, out)
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[1]:
            patches = ctx.patches
            if patches is None:
                patches, _ = _patches(input, (kh, kw), ctx.stride, ctx.padding)
            grad_weight = torch.bmm(grad.transpose(1, 2), patches).view(clients, out, kh, kw, channels).movedim(-1, 2)
        if ctx.biased and ctx.needs_input_grad[2]:
            grad_bias = grad.sum(1)
        if ctx.needs_input_grad[0]:
            pieces = torch.bmm(grad, _rows(weight)).view(*input.shape[:2], height, width, kh, kw, channels)
            (sh, sw), (ph, pw) = ctx.stride, ctx.padding
            h, w = input.shape[-2:]
            padded = grad.new_zeros(*input.shape[:2], h + 2 * ph, w + 2 * pw, channels)
            for a in range(kh):
                for b in range(kw):
                    padded[:, :, a : a + sh * height : sh, b : b + sw * width : sw] += pieces[..., a, b, :]
            grad_input = padded[:, :, ph : ph + h, pw : pw + w].movedim(-1, 2)
        return grad_input, grad_weight, grad_bias, None, None


def _rows(weight: Tensor) -> Tensor:
    """Weights [C, out, channels, kh, kw] as [C, out, kh * kw * channels], in the order of patches."""
    return weight.movedim(2, -1).flatten(2)


def _patches(
    input: Tensor, kernel: Sequence[int], stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """Input [C, n, channels, h, w] as patches [C, n * height * width, kh * kw * channels]."""
    x = input.movedim(2, -1)
    if padding != (0, 0):
        x = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])
    height, width = windows.shape[2:4]
    patches = windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, kernel[0] * kernel[1] * x.shape[-1])
    return patches, (height, width)
