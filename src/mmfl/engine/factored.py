"""Gradients of linear layers as two factors: a step subtracts their product without ever storing it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge


@dataclass(frozen=True, eq=False)
class FactoredGradient:
    """The gradient of a linear layer's weight, which may be far larger than a batch, as its factors: the gradient by
    the outputs, [jobs, rows, outputs], and the inputs, [jobs, rows, inputs]."""

    outputs: Tensor
    inputs: Tensor

    def dense(self) -> Tensor:
        """The gradient itself, [jobs, outputs * inputs]."""
        return torch.bmm(self.outputs.float().transpose(1, 2), self.inputs.float()).flatten(1)

    def subtract_from(self, weights: Tensor, rates: Tensor) -> None:
        """Subtracts `rates` [jobs, 1] times the gradient from the weights [jobs, outputs * inputs], in place."""
        matrices = weights.view(len(weights), self.outputs.shape[2], self.inputs.shape[2])
        outputs, inputs = self.outputs.to(weights.dtype), self.inputs.to(weights.dtype)
        matrices.baddbmm_((outputs * rates[:, :, None]).transpose(1, 2), inputs, alpha=-1)


GradientParts = Sequence[Tensor | FactoredGradient]
"""What adds up to the gradient of one parameter, [jobs, piece] each."""


def dense_gradient(parts: GradientParts) -> Tensor:
    """The sum of the parts, [jobs, piece]."""
    dense = [part.dense() if isinstance(part, FactoredGradient) else part for part in parts]
    return dense[0] if len(dense) == 1 else torch.stack(dense).sum(0)


def scale_gradient(parts: GradientParts, factor: Tensor) -> GradientParts:
    """The parts, each times a factor [jobs, 1]; factored gradients stay factored."""
    return [
        FactoredGradient(part.outputs * factor[:, :, None], part.inputs)
        if isinstance(part, FactoredGradient)
        else part * factor
        for part in parts
    ]


def subtract_gradient(parts: GradientParts, weights: Tensor, rates: Tensor) -> None:
    """A plain gradient step, in place, part by part: factored gradients stay factored."""
    for part in parts:
        if isinstance(part, FactoredGradient):
            part.subtract_from(weights, rates)
        else:
            weights.addcmul_(part, rates, value=-1)


class GradientFactors:
    """Collects, during a forward pass, what the factored gradients of linear layers consist of.

    Each call of a layer adds the index of its weight among the parameters, its inputs [jobs, rows, inputs], and the
    edge of the autograd graph where the gradient by its outputs arises. The edge is taken at once, before anything
    changes the outputs in place.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        self._index = {p.data_ptr(): (p.shape[-2:], n) for n, p in enumerate(parameters) if p.requires_grad}
        self._trained = {_memory(p) for p in parameters}
        self.calls: list[tuple[int, Tensor, GradientEdge]] = []

    def collect_from(self, module: nn.Module) -> None:
        """Makes the linear layers of a module add their factors here at every call."""
        for part in module.modules():
            if type(part) is nn.Linear and "forward" not in vars(part):
                part.forward = partial(self._linear, part)  # type: ignore[method-assign]

    def _linear(self, layer: nn.Linear, input: Tensor) -> Tensor:
        n = self.find(layer.weight, input, layer.bias)
        if n is None:
            return F.linear(input, layer.weight, layer.bias)
        outputs = F.linear(input, layer.weight.detach(), layer.bias)
        self.add(n, input.reshape(1, -1, input.shape[-1]), outputs)
        return outputs

    def find(self, weight: Tensor, *others: Tensor | None) -> int | None:
        """The index of the parameter that is this weight. None if it is not a parameter itself, or if no other tensor
        of the layer requires a gradient, so that none would reach its outputs."""
        shape, n = self._index.get(weight.data_ptr(), (None, 0))
        reached = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in others)
        return n if reached and shape == weight.shape[-2:] and weight.requires_grad else None

    def add(self, n: int, inputs: Tensor, outputs: Tensor) -> None:
        """Adds a call of a layer whose weight is parameter `n`. Inputs that are parameters themselves (learned queries)
        are copied, because the step changes these in place."""
        inputs = inputs.detach().clone() if _memory(inputs) in self._trained else inputs.detach()
        self.calls.append((n, inputs, get_gradient_edge(outputs)))

    def take_calls(self) -> list[tuple[int, Tensor, GradientEdge]]:
        """All calls so far, which are forgotten here."""
        calls, self.calls = self.calls, []
        return calls


def _memory(tensor: Tensor) -> int:
    """Where the memory begins that a tensor is in, or is a view of."""
    return tensor.untyped_storage().data_ptr()
