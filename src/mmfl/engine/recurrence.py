"""An LSTM layer for many clients at once, and back through it, with two kernels a step and nothing copied."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmfl.engine import cells as plain
from mmfl.engine.gpu.kernels import usable
from mmfl.engine.products import lead

_REACH = 1 << 30  # elements of one step that the kernels' 32-bit counts tell apart


def lstm_layer(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], backwards: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction over x [batch, time, inputs]; states [batch, time, hidden] and the last h, c.

    `weights` are those of a direction of `nn.LSTM`, with biases or without; under vmap all clients' are worked on at
    once.
    """
    bias = (weights[2] + weights[3])[None] if len(weights) == 4 else None
    arguments = x.flatten(0, 1)[None], weights[0][None], bias, weights[1][None], h[None], c[None], backwards
    states, h, c, *_ = Recurrence.apply(*arguments)  # type: ignore[no-untyped-call]
    return states.squeeze(0).unflatten(0, x.shape[:2]), h.squeeze(0), c.squeeze(0)


class Recurrence(torch.autograd.Function):
    """States [clients, batch * time, hidden] of a layer, and its last h and c [clients, batch, hidden].

    Takes rows of inputs [clients, batch * time, inputs], the inward weight [clients, 4 * hidden, inputs], a bias
    [clients, 4 * hidden] or none, the recurrent weight [clients, 4 * hidden, hidden], the first h and c, and whether
    time runs backwards.

    Rows stay in the order in which they come and are wanted, time within examples; a step is a strided view of them.
    What precedes a row is then the row before it, except where an example begins: the states lie in a matrix with one
    row more, so that all that precede others are a view too.
    """

    @staticmethod
    def forward(
        rows: Tensor, inward: Tensor, bias: Tensor | None, recurrent: Tensor, h: Tensor, c: Tensor, backwards: bool
    ) -> tuple[Tensor, ...]:
        """States, last h and c; and what the way back needs: padded states, cells [.., time + 1, hidden], gates."""
        clients, batch, hidden = h.shape
        steps = rows.shape[1] // batch
        gates = torch.bmm(rows, inward.mT).view(clients, batch, steps, 4 * hidden)
        padded = rows.new_empty(clients, batch * steps + 1, hidden)
        padded[:, -1 if backwards else 0] = 0
        states = padded[:, :-1] if backwards else padded[:, 1:]
        cells = rows.new_empty(clients, batch, steps + 1, hidden)
        cells[:, :, -1 if backwards else 0] = c
        weight, product = recurrent.mT, rows.new_empty(clients, batch, 4 * hidden)
        with torch.cuda.device_of(rows):
            cell = _cells(h).Cell(gates, product, bias, cells, states, backwards)
            for t, state in _in_order(states.unflatten(1, (batch, steps)), backwards):
                torch.bmm(h, weight, out=product)
                cell(t)
                h = state
        return states, h, cells[:, :, 0 if backwards else -1], padded, cells, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps what the way back needs."""
        rows, inward, _, recurrent, h, _, ctx.backwards = inputs
        ctx.save_for_backward(rows, inward, recurrent, h, *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        """Back through time; the gradients by the gates are written over the gates."""
        rows, inward, recurrent, h, padded, cells, gates = ctx.saved_tensors
        by_states, by_h, by_c = (None if grad is None else grad.contiguous() for grad in grads[:3])
        by_h, by_c = (h.new_zeros(h.shape) if grad is None else grad.clone() for grad in (by_h, by_c))
        torch.autograd.graph.increment_version(gates)
        with torch.cuda.device_of(rows):
            cell = _cells(h).CellBackward(gates, cells, by_states, by_h, by_c, ctx.backwards)
            for t, step in _in_order(gates, not ctx.backwards):
                cell(t)
                torch.bmm(step, recurrent, out=by_h)
        by_gates, steps = gates.flatten(1, 2), gates.shape[2]
        by_rows = by_inward = by_bias = by_recurrent = None
        if ctx.needs_input_grad[0]:
            by_rows = torch.bmm(by_gates, inward)
        if ctx.needs_input_grad[1]:
            by_inward = torch.bmm(by_gates.mT, rows)
        if ctx.needs_input_grad[2]:
            by_bias = by_gates.sum(1)
        if ctx.needs_input_grad[3]:
            before, first = (padded[:, 1:], steps - 1) if ctx.backwards else (padded[:, :-1], 0)
            by_recurrent = torch.bmm(by_gates.mT, before)
            # Where an example begins, its first h is what came before, not the state of the example next to it.
            by_recurrent.baddbmm_(gates[:, :, first].mT, h - before[:, first::steps])
        return by_rows, by_inward, by_bias, by_recurrent, by_h, by_c, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Clients of clients are clients."""
        tensors = [None if t is None else t.flatten(0, 1) for t in lead(info, in_dims, args[:-1])]
        outputs = Recurrence.apply(*tensors, args[-1])  # type: ignore[no-untyped-call]
        return tuple(t.unflatten(0, (info.batch_size, -1)) for t in outputs), (0,) * len(outputs)


def _in_order(tensor: Tensor, backwards: bool) -> list[tuple[int, Tensor]]:
    """Steps of a tensor [clients, batch, time, ...] in their order, with their numbers."""
    steps = list(enumerate(tensor.unbind(2)))
    return steps[::-1] if backwards else steps


def _cells(h: Tensor) -> Any:
    """Where the `Cell` and `CellBackward` are that suit states like these."""
    if usable(h) and h.numel() < _REACH:
        from mmfl.engine.gpu.kernels import recurrence

        return recurrence
    return plain
