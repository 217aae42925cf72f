"""The steps of an LSTM layer for many clients at once, and back through them, with few kernels a step."""

from typing import Any

import torch
from torch import Tensor

from mmfl.engine.products import lead


class Recurrence(torch.autograd.Function):
    """States and cells [time, ..., hidden] of a layer whose inputs have been multiplied out beforehand.

    Takes gates [time, ..., 4 * hidden], the recurrent weight [..., 4 * hidden, hidden] and the first h and c. Its vmap
    puts clients between time and batch, so that a step is one batched product and one cell over all rows; backwards
    likewise, and the gradient of the weight is one product over all steps.
    """

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States, cells, and the activated gates that the way back needs."""
        states, cells, kept = [], [], []
        for step in gates.contiguous():
            h, c, active = _cell(step, h @ weight.mT, c)
            states.append(h)
            cells.append(c)
            kept.append(active)
        return torch.stack(states), torch.stack(cells), torch.stack(kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps what the way back needs."""
        ctx.save_for_backward(*inputs[1:], *output)
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Back through time."""
        weight, h, c, states, cells, kept = ctx.saved_tensors
        by_states, by_cells, _ = grads
        before = torch.cat([c[None], cells[:-1]])
        grad_h, grad_c, steps = torch.zeros_like(h), torch.zeros_like(c), []
        for t in range(len(states) - 1, -1, -1):
            grad_h = grad_h if by_states is None else grad_h + by_states[t]
            grad_c = grad_c if by_cells is None else grad_c + by_cells[t]
            grad, grad_c = _cell_backward(grad_h, grad_c, before[t], cells[t], kept[t])
            grad_h = grad @ weight
            steps.append(grad)
        gates = torch.stack(steps[::-1])
        rows = [t.movedim(0, -3).flatten(-3, -2) for t in (gates, torch.cat([h[None], states[:-1]]))]
        return gates, rows[0].mT @ rows[1], grad_h, grad_c

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Tensor) -> Any:
        """Clients as the dimension after time."""
        gates, *rest = lead(info, in_dims, args)
        return Recurrence.apply(gates.movedim(0, 1), *rest), (1, 1, 1)  # type: ignore[no-untyped-call]


def _cell(inward: Tensor, recurrent: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next h and c, and the activated gates; on a GPU the one kernel behind `nn.LSTMCell`."""
    if inward.is_cuda:
        rows = [t.flatten(0, -2) for t in (inward, recurrent, c)]
        h, cell, active = torch.ops.aten._thnn_fused_lstm_cell(*rows)
        return h.view(c.shape), cell.view(c.shape), active.view(inward.shape)
    i, f, g, o = (inward + recurrent).chunk(4, -1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    c = f * c + i * g
    return o * torch.tanh(c), c, torch.cat([i, f, g, o], -1)


def _cell_backward(grad_h: Tensor, grad_c: Tensor, c: Tensor, cell: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by the gates before activation, and by the cell before the step."""
    if grad_h.is_cuda:
        rows = [t.flatten(0, -2) for t in (grad_h, grad_c, c, cell, active)]
        gates, before, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*rows, False)
        return gates.view(active.shape), before.view(c.shape)
    i, f, g, o = active.chunk(4, -1)
    squashed = torch.tanh(cell)
    grad_c = grad_c + grad_h * o * (1 - squashed**2)
    by_gates = (
        grad_c * g * i * (1 - i),
        grad_c * c * f * (1 - f),
        grad_c * i * (1 - g**2),
        grad_h * squashed * o * (1 - o),
    )
    return torch.cat(by_gates, -1), grad_c * f
