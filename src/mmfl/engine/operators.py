"""Operators that a cohort needs in place of torch's own: addressed dropout, and what torch cannot batch over clients.

They are swapped in while a module's `forward` runs, so that users' modules stay as they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmfl.randomness import uniform


class Operators(TorchFunctionMode):
    """While active, sends the named torch functions to their substitutes; `seen` notes which were called.

    `key` is the address of this client's step, an int64 scalar; with it the n-th dropout of a forward pass has
    a mask that depends on nothing else.
    """

    def __init__(self, substitutes: frozenset[str]):
        super().__init__()
        self.substitutes = substitutes
        self.seen: set[str] = set()
        self.key = torch.zeros((), dtype=torch.int64)
        self.calls = 0

    def begin(self, key: Tensor) -> None:
        """Starts the forward pass of a step."""
        self.key, self.calls = key, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _SUBSTITUTED.get(func)
        if name is not None:
            self.seen.add(name)
            if name in self.substitutes:
                answer = getattr(self, f"_{name}")(*args, **kwargs)
                if answer is not NotImplemented:
                    return answer
        return func(*args, **kwargs)

    def mask(self, shape: Sequence[int], device: torch.device, p: float) -> Tensor:
        """Zeros with probability p, otherwise 1 / (1 - p); a function of key and call number."""
        self.calls += 1
        if p >= 1:
            return torch.zeros(shape, device=device)
        element = torch.arange(_count(shape), device=device).view(shape)
        return (uniform(self.key, self.calls, element) >= p).float() / (1 - p)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return input * self.mask(input.shape, input.device, p) if training and p > 0 else input

    def _channel_dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p <= 0:
            return input
        rows = [*input.shape[:2], *(1 for _ in input.shape[2:])]
        return input * self.mask(rows, input.device, p)

    def _conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str) or input.dim() != 4:
            return NotImplemented
        return Convolution.apply(input, weight, bias, _pair(stride), _pair(padding))  # type: ignore[no-untyped-call]

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return Linear.apply(input, weight, bias) if input.dim() > 1 else NotImplemented  # type: ignore[no-untyped-call]

    def _group_norm(
        self, input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        groups = input.reshape(len(input), num_groups, -1)
        return _affine(_standardised(groups, (2,), eps).view(input.shape), weight, bias)

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if running_mean is not None or running_var is not None:
            return NotImplemented
        return _affine(_standardised(input, (0, *range(2, input.dim())), eps), weight, bias)

    def _embedding(
        self, input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Torch's own, batched, forgets that the padding row is not to be trained."""
        if padding_idx is None or args[:1] != (None,) * len(args[:1]) or kwargs.get("max_norm") is not None:
            return NotImplemented
        padding = (torch.arange(len(weight), device=weight.device) == padding_idx % len(weight))[:, None]
        return F.embedding(input, torch.where(padding, weight.detach(), weight))

    def _lstm(self, *args: Any) -> Any:
        """LSTM as a loop of steps, each of which a cohort can batch (fused kernels cannot)."""
        if len(args) != 9 or not isinstance(args[1], tuple | list):  # packed sequences
            return NotImplemented
        x, (h0, c0), weights, biased, layers, dropout, training, bidirectional, batch_first = args
        x = x if batch_first else x.transpose(0, 1)
        directions, per = 2 if bidirectional else 1, 4 if biased else 2
        if len(weights) != layers * directions * per:  # projections
            return NotImplemented
        last_h, last_c = [], []
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                n = layer * directions + direction
                states, h, c = _lstm_pass(x, h0[n], c0[n], weights[n * per : (n + 1) * per], direction == 1)
                outputs.append(states)
                last_h.append(h)
                last_c.append(c)
            x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
            if dropout > 0 and training and layer < layers - 1:
                x = self._dropout(x, dropout)
        x = x if batch_first else x.transpose(0, 1)
        return x, torch.stack(last_h), torch.stack(last_c)


_SUBSTITUTED: dict[Callable[..., Any], str] = {
    F.dropout: "dropout",
    F.dropout1d: "channel_dropout",
    F.dropout2d: "channel_dropout",
    F.dropout3d: "channel_dropout",
    torch.conv2d: "conv2d",
    F.linear: "linear",
    torch.lstm: "lstm",
    F.group_norm: "group_norm",
    F.batch_norm: "batch_norm",
    F.embedding: "embedding",
}
_KEPT_PATCHES = 2 << 30  # bytes
RECURRENT = frozenset({"lstm"})
BATCH_NORM = frozenset({"batch_norm"})
PRODUCTS = frozenset({"conv2d", "linear"})  # those that are faster as plain batched matrix products on a GPU
ADDRESSED = RECURRENT | {"dropout", "channel_dropout"}  # those that may draw random numbers
BATCHED = RECURRENT | BATCH_NORM | {"group_norm", "embedding"}  # those that torch cannot batch, or not rightly


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _standardised(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    variance, mean = torch.var_mean(x, dims, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scaled and shifted by channel, the second dimension."""
    shape = (-1, *(1 for _ in x.shape[2:]))
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def _lstm_pass(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction over x [batch, time, inputs]; states [batch, time, hidden] and the last h, c."""
    inward, recurrent = weights[0], weights[1]
    gates = x @ inward.T
    if len(weights) == 4:
        gates = gates + weights[2] + weights[3]
    states: list[Tensor] = []
    for t in range(x.shape[1] - 1, -1, -1) if backwards else range(x.shape[1]):
        i, f, g, o = (gates[:, t] + h @ recurrent.T).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states[::-1] if backwards else states, 1), h, c


class Convolution(torch.autograd.Function):
    """A convolution whose vmap over clients is one batched matrix product, not a grouped convolution.

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
        return CohortConvolution.apply(*_lead(info, in_dims, args[:3]), *args[3:]), 0  # type: ignore[no-untyped-call]


class Linear(torch.autograd.Function):
    """A linear layer whose vmap over clients leaves the gradient of the weights in their own layout.

    Torch's own leaves it transposed, and turning a matrix per client takes longer than computing it.
    """

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The plain layer, outside of a cohort."""
        return F.linear(input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: only the vmapped form is differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The cohort's form, with clients as a leading dimension of input, weight and bias."""
        return CohortLinear.apply(*_lead(info, in_dims, args)), 0  # type: ignore[no-untyped-call]


def _lead(info: Any, in_dims: Any, tensors: Any) -> list[Tensor | None]:
    """Tensors with the clients' dimension first; those without one are the same for all clients."""
    return [
        None if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]


class CohortLinear(torch.autograd.Function):
    """Inputs [C, ..., inputs] times a weight per client [C, outputs, inputs], plus a bias [C, outputs]."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One batched matrix product."""
        rows = input.reshape(len(input), -1, input.shape[-1])
        ctx.save_for_backward(rows, weight)
        ctx.shape, ctx.biased = input.shape, bias is not None
        kernel = weight.transpose(1, 2)
        product = torch.bmm(rows, kernel) if bias is None else torch.baddbmm(bias[:, None], rows, kernel)
        return product.view(*input.shape[:-1], weight.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of input (where asked for), weight and bias."""
        rows, weight = ctx.saved_tensors
        grad = grads[0].reshape(len(rows), -1, weight.shape[1])
        grad_input = torch.bmm(grad, weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        grad_weight = torch.bmm(grad.transpose(1, 2), rows) if ctx.needs_input_grad[1] else None
        return grad_input, grad_weight, grad.sum(1) if ctx.biased and ctx.needs_input_grad[2] else None


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
