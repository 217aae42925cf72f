"""Local steps: how gradients become changes of weights, by a rule."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from mmfl.engine.factored import GradientParts, dense_gradient, subtract_gradient
from mmfl.engine.layout import Layout
from mmfl.errors import UserError
from mmfl.local import LocalPosition, LocalRule, LocalStep


@dataclass(frozen=True, eq=False)
class JobTensors:
    """What local steps read and change, with a row per job.

    `weights` [jobs, parameters] are trained in place, with `rates` [jobs, 1]. Job j starts at `starts[start_index[j]]`.
    `corrections` are those of the rule, if it has any; `state` is a matrix for each of its state vectors.
    """

    weights: Tensor
    starts: Tensor
    start_index: Tensor
    rates: Tensor
    corrections: Tensor | None = None
    state: tuple[Tensor, ...] = ()

    def rows(self, rows: slice) -> "JobTensors":
        """The same tensors for some of the jobs, as views."""
        return JobTensors(
            self.weights[rows],
            self.starts,
            self.start_index[rows],
            self.rates[rows],
            None if self.corrections is None else self.corrections[rows],
            tuple(vector[rows] for vector in self.state),
        )

    def zero_state(self, rule: LocalRule) -> tuple[Tensor, ...]:
        """The rule's state vectors of all jobs before the first step."""
        return tuple(self.weights.new_zeros(self.weights.shape) for _ in range(rule.state_vectors))


class LocalSteps:
    """Takes the local steps of some jobs, parameter by parameter.

    With `factored`, gradients of linear layers stay factored under every rule that adds to the gradient; without it
    only where nothing is added. It is off on a CPU, where the sum of gradient and offset is rounded before the step.
    """

    def __init__(self, rule: LocalRule, layout: Layout, tensors: JobTensors, factored: bool):
        self._rule, self._rates, self._factored = rule, tensors.rates, factored
        self._positions = [
            LocalPosition(
                weights=tensors.weights[:, piece],
                starts=tensors.starts[:, piece],
                start_index=tensors.start_index,
                correction=None if tensors.corrections is None else tensors.corrections[:, piece],
                state=tuple(vector[:, piece] for vector in tensors.state),
            )
            for piece in layout.slices
        ]

    def take(self, gradients: Iterable[tuple[int, GradientParts]]) -> None:
        """One step, given the gradient of each parameter."""
        step = self._add_to_gradient if self._rule.adds_to_gradient else self._follow_direction
        for n, parts in gradients:
            step(self._positions[n], parts)

    def _add_to_gradient(self, position: LocalPosition, parts: GradientParts) -> None:
        offset = self._rule.offset(position)
        if offset is None:
            subtract_gradient(parts, position.weights, self._rates)
            return
        self._check_shape("offset", offset, position)
        if self._factored:
            subtract_gradient([offset, *parts], position.weights, self._rates)
        else:
            position.weights.addcmul_(dense_gradient(parts) + offset, self._rates, value=-1)

    def _follow_direction(self, position: LocalPosition, parts: GradientParts) -> None:
        direction = self._rule.direction(
            LocalStep(
                weights=position.weights,
                starts=position.starts,
                start_index=position.start_index,
                correction=position.correction,
                state=position.state,
                gradient=dense_gradient(parts),
            )
        )
        self._check_shape("direction", direction, position)
        position.weights.addcmul_(direction, self._rates, value=-1)

    def _check_shape(self, name: str, tensor: Tensor, position: LocalPosition) -> None:
        """Torch would broadcast another shape silently."""
        if tensor.shape != position.weights.shape:
            raise UserError(
                f"local rule {type(self._rule).__name__}: {name} of shape {list(tensor.shape)} for "
                f"gradients {list(position.weights.shape)}; expected the same [jobs, piece]."
            )
