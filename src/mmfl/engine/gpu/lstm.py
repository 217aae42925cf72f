"""An LSTM layer for all clients of a cohort at once: two kernels per time step in each direction, and no copies."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmfl.engine.layers import clients_first

_MAX_STATES = 1 << 30  # numbers of a time step that the kernels' 32-bit indices can address


def lstm_layer(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], backwards: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction over x [batch, time, inputs]; states [batch, time, hidden] and the last h, c.

    `weights` are those of one direction of `nn.LSTM`, with or without biases. Under vmap it runs for all clients at
    once. It needs Triton: ask `kernels.usable` first.
    """
    bias = (weights[2] + weights[3])[None] if len(weights) == 4 else None
    arguments = x.flatten(0, 1)[None], weights[0][None], bias, weights[1][None], h[None], c[None], backwards
    states, h, c, *_ = Recurrence.apply(*arguments)  # type: ignore[no-untyped-call]
    return states.squeeze(0).unflatten(0, x.shape[:2]), h.squeeze(0), c.squeeze(0)


class Recurrence(torch.autograd.Function):
    """The states [clients, batch * time, hidden] of a layer, and its last h and c [clients, batch, hidden].

    Takes inputs [clients, batch * time, inputs], the input weight [clients, 4 * hidden, inputs], a bias
    [clients, 4 * hidden] or None, the recurrent weight [clients, 4 * hidden, hidden], the initial h and c, and whether
    time runs backwards.

    Rows are never reordered: they are sorted by example, then by time, and a time step is a strided view. The state
    before a row is then the row before it, except at the first time step of an example. The matrix of states has one
    row more, so that the previous states are a view as well.
    """

    @staticmethod
    def forward(
        rows: Tensor,
        input_weight: Tensor,
        bias: Tensor | None,
        recurrent: Tensor,
        h: Tensor,
        c: Tensor,
        backwards: bool,
    ) -> tuple[Tensor, ...]:
        """States, last h and c; and for the backward pass padded states, cells [.., time + 1, hidden] and gates."""
        clients, batch, hidden = h.shape
        steps = rows.shape[1] // batch
        gates = torch.bmm(rows, input_weight.mT).view(clients, batch, steps, 4 * hidden)
        padded = rows.new_empty(clients, batch * steps + 1, hidden)
        padded[:, -1 if backwards else 0] = 0
        states = padded[:, :-1] if backwards else padded[:, 1:]
        cells = rows.new_empty(clients, batch, steps + 1, hidden)
        cells[:, :, -1 if backwards else 0] = c
        weight, product = recurrent.mT, rows.new_empty(clients, batch, 4 * hidden)
        with torch.cuda.device_of(rows):
            run = kernels_for(h).cell(gates, product, bias, cells, states, backwards)
            for t, state in in_order(states.unflatten(1, (batch, steps)), backwards):
                torch.bmm(h, weight, out=product)
                run(t)
                h = state
        return states, h, cells[:, :, 0 if backwards else -1], padded, cells, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves what the backward pass needs."""
        rows, input_weight, _, recurrent, h, _, ctx.backwards = inputs
        ctx.save_for_backward(rows, input_weight, recurrent, h, *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        """Backpropagation through time; the gradients by the gates overwrite the gates."""
        rows, input_weight, recurrent, h, padded, cells, gates = ctx.saved_tensors
        by_states, by_h, by_c = (None if grad is None else grad.contiguous() for grad in grads[:3])
        by_h, by_c = (h.new_zeros(h.shape) if grad is None else grad.clone() for grad in (by_h, by_c))
        torch.autograd.graph.increment_version(gates)
        with torch.cuda.device_of(rows):
            run = kernels_for(h).cell_backward(gates, cells, by_states, by_h, by_c, ctx.backwards)
            for t, step in in_order(gates, not ctx.backwards):
                run(t)
                torch.bmm(step, recurrent, out=by_h)
        by_gates, steps = gates.flatten(1, 2), gates.shape[2]
        needed = ctx.needs_input_grad
        by_rows = torch.bmm(by_gates, input_weight) if needed[0] else None
        by_input_weight = torch.bmm(by_gates.mT, rows) if needed[1] else None
        by_bias = by_gates.sum(1) if needed[2] else None
        by_recurrent = None
        if needed[3]:
            before, first = (padded[:, 1:], steps - 1) if ctx.backwards else (padded[:, :-1], 0)
            by_recurrent = torch.bmm(by_gates.mT, before)
            # Before the first time step of an example is its initial h, not the last state of the example before it.
            by_recurrent.baddbmm_(gates[:, :, first].mT, h - before[:, first::steps])
        return by_rows, by_input_weight, by_bias, by_recurrent, by_h, by_c, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The dimension that vmap adds joins that of the clients."""
        tensors = [None if t is None else t.flatten(0, 1) for t in clients_first(info, in_dims[:-1], args[:-1])]
        outputs = Recurrence.apply(*tensors, args[-1])  # type: ignore[no-untyped-call]
        return tuple(t.unflatten(0, (info.batch_size, -1)) for t in outputs), (0,) * len(outputs)


def in_order(tensor: Tensor, backwards: bool) -> list[tuple[int, Tensor]]:
    """The time steps of a tensor [clients, batch, time, ...] in the order of processing, with their indices."""
    steps = list(enumerate(tensor.unbind(2)))
    return steps[::-1] if backwards else steps


def kernels_for(h: Tensor) -> Any:
    """The module with the fused kernels of a time step."""
    if h.numel() >= _MAX_STATES:
        raise torch.OutOfMemoryError(f"a time step of {h.numel()} states: a smaller cohort is needed")
    from mmfl.engine.gpu.kernels import recurrence

    return recurrence
