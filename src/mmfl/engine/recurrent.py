"""Recurrent layers as loops over time steps, in one direction."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.engine.gpu.gru import gru_layer
from mmfl.engine.gpu.kernels import usable
from mmfl.engine.gpu.lstm import lstm_layer

Result = tuple[Tensor, Sequence[Tensor]]
Pass = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor], bool], Result]
"""From x [batch, time, inputs], the states before it, weights as torch's layers have them, and whether to go backwards:
to the states [batch, time, hidden] and the last ones."""


def lstm(x: Tensor, initial: Sequence[Tensor], weights: Sequence[Tensor], backwards: bool) -> Result:
    """A layer of an LSTM; on a GPU by fused kernels."""
    if usable(x):
        states, *last = lstm_layer(x, initial[0], initial[1], weights, backwards)
        return states, last

    def step(gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (gates + h @ weights[1].T).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    bias = weights[2] + weights[3] if len(weights) == 4 else None
    return _over_time(step, F.linear(x, weights[0], bias), initial, backwards)


def gru(x: Tensor, initial: Sequence[Tensor], weights: Sequence[Tensor], backwards: bool) -> Result:
    """A layer of a GRU; on a GPU by fused kernels."""
    if usable(x):
        states, last = gru_layer(x, initial[0], weights, backwards)
        return states, [last]
    bias, recurrent_bias = weights[2:] if len(weights) == 4 else (None, None)

    def step(gates: Tensor, h: Tensor) -> tuple[Tensor]:
        reset, update, new = gates.chunk(3, -1)
        from_reset, from_update, from_new = F.linear(h, weights[1], recurrent_bias).chunk(3, -1)
        new = torch.tanh(new + torch.sigmoid(reset + from_reset) * from_new)
        return (new + torch.sigmoid(update + from_update) * (h - new),)

    return _over_time(step, F.linear(x, weights[0], bias), initial, backwards)


def rnn(activation: Callable[[Tensor], Tensor]) -> Pass:
    """A layer of a plain recurrent network."""

    def run(x: Tensor, initial: Sequence[Tensor], weights: Sequence[Tensor], backwards: bool) -> Result:
        bias = weights[2] + weights[3] if len(weights) == 4 else None
        inputs = F.linear(x, weights[0], bias)
        return _over_time(lambda step, h: (activation(step + h @ weights[1].T),), inputs, initial, backwards)

    return run


def _over_time(
    step: Callable[..., Sequence[Tensor]], inputs: Tensor, initial: Sequence[Tensor], backwards: bool
) -> Result:
    """Runs `step` from the inputs of a time and the states before it to the next states, the first being the output."""
    steps, states, outputs = inputs.unbind(1), initial, []
    for each in steps[::-1] if backwards else steps:
        states = step(each, *states)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if backwards else outputs, 1), states
