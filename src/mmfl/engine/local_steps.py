"""LocalSteps: the local steps of some jobs, from gradients to weights."""

from collections.abc import Iterable

import torch
from torch import Tensor

from mmfl.engine.cohort import JobTensors
from mmfl.engine.factored import GradientParts, dense_gradient, scale_gradient, subtract_gradient
from mmfl.engine.layout import Layout
from mmfl.errors import UserError
from mmfl.federation.optimisers import Optimiser
from mmfl.local import LocalPosition, LocalRule, LocalStep

_CLIP_MARGIN = 1e-6  # as in torch's clip_grad_norm_


class LocalSteps:
    """Takes the local steps of some jobs, parameter by parameter: the rule's direction, clipped, then the optimiser's.

    With `factored`, gradients of linear layers stay factored under every rule that adds to the gradient; without it
    only where nothing is added. It is off on a CPU, where the sum of gradient and offset is rounded before the step.
    """

    def __init__(self, rule: LocalRule, optimiser: Optimiser, layout: Layout, tensors: JobTensors, factored: bool):
        self._rule, self._optimiser, self._factored = rule, optimiser, factored
        self._rates, self._number = tensors.rates, tensors.number
        self._plain = optimiser.is_plain
        self._positions = [tensors.piece(piece) for piece in layout.slices]
        shape = optimiser.state_vectors, tensors.weights.shape[1]
        vectors = tensors.optimiser_state[:, :-1].unflatten(1, shape).unbind(1)
        self._states = [[vector[:, piece] for vector in vectors] for piece in layout.slices]
        self._optimiser_steps = tensors.optimiser_state[:, -1:]  # exact in float32, up to 16 million

    def take(self, gradients: Iterable[tuple[int, GradientParts]]) -> None:
        """One step, given the gradient of each parameter."""
        self._number.add_(1)
        number = self._number if self._plain else self._optimiser_steps.add_(1).double()
        if self._rule.needs_norm or self._optimiser.clip_norm is not None or self._optimiser.clip_value is not None:
            gradients = self._clip(list(gradients))
        else:
            gradients = ((n, self._direction(n, parts, None)) for n, parts in gradients)
        for n, parts in gradients:
            position = self._positions[n]
            if not self._plain:
                gradient = dense_gradient(parts)
                parts = [self._optimiser.direction(gradient, position.weights, self._states[n], number)]
                if self._rule.after_optimiser:
                    parts = self._add_offset(position, parts)
            subtract_gradient(parts, position.weights, self._rates)

    def _clip(self, gradients: list[tuple[int, GradientParts]]) -> list[tuple[int, GradientParts]]:
        """The rule's directions, which must all be known before one of them is clipped by their length."""
        norm = _norm(gradients) if self._rule.needs_norm else None
        clipped = [(n, self._direction(n, parts, norm)) for n, parts in gradients]
        if (most := self._optimiser.clip_value) is not None:
            clipped = [(n, [dense_gradient(parts).clamp(-most, most)]) for n, parts in clipped]
        if (most := self._optimiser.clip_norm) is not None:
            factor = (most / (_norm(clipped) + _CLIP_MARGIN)).clamp(max=1)
            clipped = [(n, scale_gradient(parts, factor)) for n, parts in clipped]
        return clipped

    def _direction(self, n: int, parts: GradientParts, norm: Tensor | None) -> GradientParts:
        """The parts of the rule's direction, given those of the gradient."""
        position = self._positions[n]
        if not self._rule.adds_to_gradient:
            step = LocalStep(**vars(position), gradient=dense_gradient(parts), norm=norm)
            return [self._checked("direction", self._rule.direction(step), position)]
        return self._add_offset(position, parts) if self._plain or not self._rule.after_optimiser else parts

    def _add_offset(self, position: LocalPosition, parts: GradientParts) -> GradientParts:
        offset = self._rule.offset(position)
        if offset is None:
            return parts
        self._checked("offset", offset, position)
        return [offset, *parts] if self._factored else [dense_gradient(parts) + offset]

    def _checked(self, name: str, tensor: Tensor, position: LocalPosition) -> Tensor:
        """The tensor, if it has the right shape: torch would broadcast another one silently."""
        if tensor.shape != position.weights.shape:
            raise UserError(
                f"local rule {type(self._rule).__name__}: {name} of shape {list(tensor.shape)} for "
                f"gradients {list(position.weights.shape)}; expected the same [jobs, piece]."
            )
        return tensor


def _norm(gradients: list[tuple[int, GradientParts]]) -> Tensor:
    """The length of each job's whole gradient, [jobs, 1]."""
    return torch.stack([dense_gradient(parts).square().sum(1) for _, parts in gradients]).sum(0).sqrt()[:, None]
