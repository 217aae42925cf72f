"""Operators that replace torch's own in the engine: dropout with addressed random numbers, and what torch cannot batch
over clients.

They are swapped in while a module's `forward` runs, so that users' modules stay as they are.
"""

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmfl.engine import attention, dropout, layers, recurrent
from mmfl.engine.factored import GradientFactors

Change = Callable[[Tensor, Tensor, float], Tensor]
"""From an input, what is kept of it and the probability to drop: the input after dropout."""


class Operators(TorchFunctionMode):
    """While active, replaces the named torch functions by their substitutes; `seen` collects which were called.

    `key` is the address of this client's step, an int64 scalar: the mask of the n-th dropout of a forward pass depends
    on the key and n alone. `factors` collects the factored gradients of linear layers, where these are substituted.
    """

    def __init__(self, substitutes: frozenset[str]):
        super().__init__()
        self.substitutes = substitutes
        self.seen: set[str] = set()
        self.key = torch.zeros((), dtype=torch.int64)
        self.dropouts = 0
        self.factors: GradientFactors | None = None

    def begin(self, key: Tensor) -> None:
        """Starts the forward pass of a step."""
        self.key, self.dropouts = key, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and (sliced := _without_stride(*args, **kwargs)):
            self.seen |= STRIDED_1X1
            args, kwargs = (sliced, {}) if self.substitutes >= STRIDED_1X1 else (args, kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return attention.multi_head_attention(*args, **kwargs)
        names = _names(func, args, kwargs)
        self.seen.update(names)
        for name in filter(self.substitutes.__contains__, names):
            inner = (func,) if name == "inner_dropout" else ()
            answer = getattr(self, f"_{name}")(*inner, *args, **kwargs)
            if answer is not NotImplemented:
                return answer
        return func(*args, **kwargs)

    def _keep(self, shape: Sequence[int], device: torch.device, p: float) -> Tensor:
        """Which elements the next dropout of this forward pass keeps."""
        self.dropouts += 1
        return dropout.draw_keep_mask(shape, device, p, self.key, self.dropouts)

    def _drop(self, by_channel: bool, change: Change, input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        """Dropout of elements, or of whole channels of inputs [examples, channels, ...]."""
        if not training or p == 0:
            return input
        shape = [*input.shape[:2], *(1 for _ in input.shape[2:])] if by_channel else input.shape
        changed = change(input, self._keep(shape, input.device, p), p) if p < 1 else input * 0
        return input.copy_(changed) if inplace else changed

    _dropout = partialmethod(_drop, False, dropout.drop)
    _channel_dropout = partialmethod(_drop, True, dropout.drop)
    _alpha_dropout = partialmethod(_drop, False, dropout.drop_alpha)
    _channel_alpha_dropout = partialmethod(_drop, True, dropout.drop_alpha)

    def _attention_dropout(self, *args: Any, **kwargs: Any) -> Tensor:
        return attention.attention_with_dropout(self._keep, *args, **kwargs)

    _attention = staticmethod(attention.attention)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return NotImplemented if self.factors is None else layers.linear(input, weight, bias, self.factors)

    def _linear_of_sequences(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return layers.linear(input, weight, bias, None)

    _conv2d = staticmethod(layers.convolution)
    _max_pool = staticmethod(layers.max_pool)
    _group_norm = staticmethod(layers.group_norm)

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
        """Torch's own refuses a single value per channel. Statistics change in place."""
        mean, variance = running_mean, running_var
        if training:
            variance, mean = torch.var_mean(input, (0, *range(2, input.dim())), unbiased=False)
        if training and running_mean is not None:
            values = input.numel() // input.shape[1]
            running_mean.mul_(1 - momentum).add_(mean.detach(), alpha=momentum)
            unbiased = variance.detach() * (values / max(values - 1, 1))
            running_var.mul_(1 - momentum).add_(unbiased, alpha=momentum)
        scale = torch.rsqrt(variance + eps) if weight is None else torch.rsqrt(variance + eps) * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        by_channel = (-1, *(1 for _ in input.shape[2:]))
        return torch.addcmul(shift.view(by_channel), input, scale.view(by_channel))

    _batch_norm_of_one = _batch_norm

    def _embedding(
        self, input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Torch's own, batched, would train the padding row, and read a number that is too large from another client's
        rows: such a number becomes one that is too large for all."""
        if args[:1] != (None,) * len(args[:1]) or kwargs.get("max_norm") is not None:
            return NotImplemented
        known = (input >= 0) & (input < len(weight))
        input = torch.where(known, input, torch.iinfo(input.dtype).max // 2)
        if padding_idx is not None:
            padding = (torch.arange(len(weight), device=weight.device) == padding_idx % len(weight))[:, None]
            weight = torch.where(padding, weight.detach(), weight)
        return F.embedding(input, weight, None, *args, **kwargs)

    def _recurrent(self, run: recurrent.Pass, *args: Any) -> Any:
        """A recurrent layer as a loop over time steps, which torch can batch (it cannot batch its fused kernels)."""
        if not _is_recurrent_call(args):
            return NotImplemented
        x, states, weights, biased, depth, _, _, bidirectional, batch_first = args
        initial = [states] if isinstance(states, Tensor) else states
        x = x if batch_first else x.transpose(0, 1)
        directions, per = 2 if bidirectional else 1, 4 if biased else 2
        if len(weights) != depth * directions * per:  # projections
            return NotImplemented
        last: list[Sequence[Tensor]] = []
        for layer in range(depth):
            outputs = []
            for direction in range(directions):
                n = layer * directions + direction
                own = weights[n * per : (n + 1) * per]
                output, ends = run(x, [state[n] for state in initial], own, direction == 1)
                outputs.append(output)
                last.append(ends)
            x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        x = x if batch_first else x.transpose(0, 1)
        return x, *map(torch.stack, zip(*last, strict=True))

    def _inner_dropout(self, layer: Callable[..., Any], *args: Any) -> Any:
        """A recurrent network layer by layer, with dropout between them."""
        x, states, weights, biased, depth, p, training, bidirectional, batch_first = args
        initial = [states] if isinstance(states, Tensor) else states
        parts, last = [state.chunk(depth) for state in initial], []
        for n in range(depth):
            before = [part[n] for part in parts]
            own = weights[n * len(weights) // depth : (n + 1) * len(weights) // depth]
            call = x, before[0] if isinstance(states, Tensor) else before, own, biased, 1, 0.0
            x, *ends = self.__torch_function__(layer, (), (*call, training, bidirectional, batch_first))
            x = self._dropout(x, p, training, False) if n < depth - 1 else x
            last.append(ends)
        return x, *map(torch.cat, zip(*last, strict=True))

    _lstm = partialmethod(_recurrent, recurrent.lstm)
    _gru = partialmethod(_recurrent, recurrent.gru)
    _rnn_tanh = partialmethod(_recurrent, recurrent.rnn(torch.tanh))
    _rnn_relu = partialmethod(_recurrent, recurrent.rnn(torch.relu))


_NAMES: dict[Callable[..., Any], str] = {
    F.dropout: "dropout",
    F.dropout1d: "channel_dropout",
    F.dropout2d: "channel_dropout",
    F.dropout3d: "channel_dropout",
    F.alpha_dropout: "alpha_dropout",
    F.feature_alpha_dropout: "channel_alpha_dropout",
    F.scaled_dot_product_attention: "attention",
    torch.conv2d: "conv2d",
    F.linear: "linear",
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
    F.group_norm: "group_norm",
    F.batch_norm: "batch_norm",
    F.embedding: "embedding",
    F.max_pool2d: "max_pool",
}
_WITHOUT_EXAMPLES = {F.dropout1d: 2, F.dropout3d: 4}  # dimensions of an input that torch takes for a single example
STRIDED_1X1 = frozenset({"strided_1x1"})  # strided convolutions of single pixels
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
BATCH_NORM, BATCH_NORM_OF_ONE = frozenset({"batch_norm"}), frozenset({"batch_norm_of_one"})
DROPOUT = frozenset({"dropout", "channel_dropout", "alpha_dropout", "channel_alpha_dropout"})
DROPOUT |= {"attention_dropout", "inner_dropout"}
# torch cannot batch these, or does it wrongly or slowly
NOT_BATCHED = RECURRENT | BATCH_NORM | {"group_norm", "embedding", "attention", "linear_of_sequences"}
FASTER_ON_GPU = frozenset({"conv2d", "linear", "max_pool"})


def _names(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """The names of the substitutes for this call, the first choice first."""
    name = _NAMES.get(func)
    if name is None or _WITHOUT_EXAMPLES.get(func) == args[0].dim():
        return []
    if name == "attention" and (args[4] if len(args) > 4 else kwargs.get("dropout_p", 0)) > 0:
        return ["attention_dropout", name]
    if name in RECURRENT and _is_recurrent_call(args) and args[4] > 1 and args[5] > 0 and args[6]:
        return ["inner_dropout", name]
    if name == "batch_norm" and args[0].numel() == args[0].shape[1]:
        return [name, "batch_norm_of_one"]
    return [name, "linear_of_sequences"] if name == "linear" and args[0].dim() > 2 else [name]


def _is_recurrent_call(args: Sequence[Any]) -> bool:
    """Whether these are the arguments of a recurrent module, and not of packed sequences."""
    return len(args) == 9 and isinstance(args[2], tuple | list)


def _without_stride(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...] | None:
    """Arguments of the same convolution without a stride, if its kernel is a single pixel: the stride skips pixels.

    oneDNN's backward pass of such a convolution writes past its memory when there are few channels, channels last.
    """
    pair = layers.pair
    if weight.shape[-2:] != (1, 1) or input.dim() != 4 or pair(stride) == (1, 1) or padding not in (0, (0, 0), [0, 0]):
        return None
    down, across = pair(stride)
    return input[:, :, ::down, ::across], weight, bias, 1, 0, dilation, groups
