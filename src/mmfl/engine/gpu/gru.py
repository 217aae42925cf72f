"""A GRU layer for all clients of a cohort at once: two kernels per time step in each direction."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmfl.engine.gpu.lstm import in_order, kernels_for
from mmfl.engine.layers import clients_first


def gru_layer(x: Tensor, h: Tensor, weights: Sequence[Tensor], backwards: bool = False) -> tuple[Tensor, Tensor]:
    """One layer in one direction over x [batch, time, inputs]; states [batch, time, hidden] and the last h.

    `weights` are those of one direction of `nn.GRU`, with or without biases. Under vmap it runs for all clients at
    once. It needs Triton: ask `kernels.usable` first.
    """
    weight, recurrent, *biases = (each[None] for each in weights)
    bias, recurrent_bias = biases or (None, None)
    arguments = x[None], weight, bias, recurrent, recurrent_bias, h[None], backwards
    states, h, *_ = GatedRecurrence.apply(*arguments)  # type: ignore[no-untyped-call]
    return states.squeeze(0), h.squeeze(0)


class GatedRecurrence(torch.autograd.Function):
    """The states [clients, batch, time, hidden] of a layer, and the last [clients, batch, hidden].

    Takes inputs [clients, batch, time, inputs], the input weight [clients, 3 * hidden, inputs] and its bias [clients,
    3 * hidden] or None, the recurrent weight [clients, 3 * hidden, hidden] and its bias, the initial h, and whether
    time runs backwards.

    What a step computes lies in four parts [clients, batch, time, 4 * hidden]: new, reset and update gate, and what the
    last state adds to the new one. The first three are what inputs lead to, the last three what the last state leads
    to, so that either can be multiplied by a weight without a copy.
    """

    @staticmethod
    def forward(
        x: Tensor,
        input_weight: Tensor,
        bias: Tensor | None,
        recurrent: Tensor,
        recurrent_bias: Tensor | None,
        h: Tensor,
        backwards: bool,
    ) -> tuple[Tensor, ...]:
        """States and the last one; and for the backward pass the states with the initial one, [.., time + 1, hidden],
        and the parts."""
        clients, batch, steps, _ = x.shape
        hidden = h.shape[-1]
        parts = x.new_empty(clients, batch, steps, 4 * hidden)
        torch.bmm(x.flatten(1, 2), _new_first(input_weight).mT, out=parts.flatten(1, 2)[..., : 3 * hidden])
        states = x.new_empty(clients, batch, steps + 1, hidden)
        states[:, :, -1 if backwards else 0] = h
        weight, product = recurrent.mT, x.new_empty(clients, batch, 3 * hidden)
        before, after = (states[:, :, 1:], states[:, :, :-1]) if backwards else (states[:, :, :-1], states[:, :, 1:])
        with torch.cuda.device_of(x):
            run = kernels_for(h).gru_cell(parts, product, bias, recurrent_bias, states, backwards)
            for t, state in in_order(before, backwards):
                torch.bmm(state, weight, out=product)
                run(t)
        return after, states[:, :, 0 if backwards else -1], states, parts

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves what the backward pass needs."""
        x, input_weight, _, recurrent, _, _, ctx.backwards = inputs
        ctx.save_for_backward(x, input_weight, recurrent, *output[2:])
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        """Backpropagation through time; the gradients by the parts overwrite the parts."""
        x, input_weight, recurrent, states, parts = ctx.saved_tensors
        hidden = states.shape[-1]
        by_states = None if grads[0] is None else grads[0].contiguous()
        by_h = states.new_zeros(states[:, :, 0].shape) if grads[1] is None else grads[1].clone().contiguous()
        torch.autograd.graph.increment_version(parts)
        with torch.cuda.device_of(x):
            run = kernels_for(by_h).gru_cell_backward(parts, states, by_states, by_h, ctx.backwards)
            for t, step in in_order(parts[..., hidden:], not ctx.backwards):
                run(t)
                by_h.baddbmm_(step, recurrent)
        from_inputs, from_state = (parts.flatten(1, 2)[..., own] for own in (slice(3 * hidden), slice(hidden, None)))
        needed = ctx.needs_input_grad
        by_x = torch.bmm(from_inputs, _new_first(input_weight)).view(x.shape) if needed[0] else None
        by_input_weight = _new_last(torch.bmm(from_inputs.mT, x.flatten(1, 2))) if needed[1] else None
        by_bias = _new_last(from_inputs.sum(1)) if needed[2] else None
        by_recurrent = None
        if needed[3]:
            before = states[:, :, 1:] if ctx.backwards else states[:, :, :-1]
            by_recurrent = torch.bmm(from_state.mT, before.flatten(1, 2))
        by_recurrent_bias = from_state.sum(1) if needed[4] else None
        return by_x, by_input_weight, by_bias, by_recurrent, by_recurrent_bias, by_h, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The dimension that vmap adds joins that of the clients."""
        tensors = [None if t is None else t.flatten(0, 1) for t in clients_first(info, in_dims[:-1], args[:-1])]
        outputs = GatedRecurrence.apply(*tensors, args[-1])  # type: ignore[no-untyped-call]
        return tuple(t.unflatten(0, (info.batch_size, -1)) for t in outputs), (0,) * len(outputs)


def _new_first(weight: Tensor) -> Tensor:
    """Rows for reset, update and new state [clients, 3 * hidden, ...], those for the new state first."""
    return weight.roll(weight.shape[1] // 3, 1)


def _new_last(weight: Tensor) -> Tensor:
    """The other way round."""
    return weight.roll(-(weight.shape[1] // 3), 1)
