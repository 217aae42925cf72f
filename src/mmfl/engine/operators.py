"""Operators that a cohort needs in place of torch's own: addressed dropout, and what torch cannot batch over clients.

They are swapped in while a module's `forward` runs, so that users' modules stay as they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmfl.engine.gpu.kernels import usable
from mmfl.engine.products import Convolution, Factors, GroupNorm, Linear, MaxPool
from mmfl.engine.recurrence import lstm_layer
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
        self.factors: Factors | None = None

    def begin(self, key: Tensor) -> None:
        """Starts the forward pass of a step."""
        self.key, self.calls = key, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and (thinned := _thinned(*args, **kwargs)):
            self.seen |= THINNED
            args, kwargs = (thinned, {}) if self.substitutes >= THINNED else (args, kwargs)
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
        if input.dim() < 2 or self.factors is None:
            return NotImplemented
        return Linear.apply(input, weight, bias, self.factors)  # type: ignore[no-untyped-call]

    def _group_norm(
        self, input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        return GroupNorm.apply(input, weight, bias, num_groups, eps)  # type: ignore[no-any-return, no-untyped-call]

    def _max_pool(
        self,
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        window = _pair(kernel_size)
        beside = _pair(stride or window) == window and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
        if not beside or return_indices or input.dim() != 4:
            return NotImplemented
        return MaxPool.apply(input, window, ceil_mode)  # type: ignore[no-untyped-call]

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
    F.max_pool2d: "max_pool",
}
THINNED = frozenset({"thinned"})  # strided convolutions of single pixels
RECURRENT = frozenset({"lstm"})
BATCH_NORM = frozenset({"batch_norm"})
FASTER = frozenset({"conv2d", "linear", "max_pool"})  # those of which a GPU has better for a cohort than torch's own
ADDRESSED = RECURRENT | {"dropout", "channel_dropout"}  # those that may draw random numbers
BATCHED = RECURRENT | BATCH_NORM | {"group_norm", "embedding"}  # those that torch cannot batch, or not rightly


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _thinned(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...] | None:
    """Arguments of the same convolution without a stride, if its kernel is a single pixel: it only leaves pixels out.

    oneDNN's own way back through such strides writes past its memory when channels are few and last.
    """
    if weight.shape[-2:] != (1, 1) or input.dim() != 4 or _pair(stride) == (1, 1) or padding not in (0, (0, 0), [0, 0]):
        return None
    down, across = _pair(stride)
    return input[:, :, ::down, ::across], weight, bias, 1, 0, dilation, groups


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
    if x.is_cuda or usable(x):
        return lstm_layer(x, h, c, weights, backwards)
    bias = weights[2] + weights[3] if len(weights) == 4 else None
    gates = F.linear(x, weights[0], bias).unbind(1)
    outputs: list[Tensor] = []
    for step in gates[::-1] if backwards else gates:
        i, f, g, o = (step + h @ weights[1].T).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs[::-1] if backwards else outputs, 1), h, c
