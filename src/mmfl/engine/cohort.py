"""Cohort: jobs that train together, and the local steps they take."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Batches
from mmfl.engine.device_data import DeviceData
from mmfl.engine.factored import GradientParts, dense_gradient, subtract_gradient
from mmfl.engine.jobs import Jobs
from mmfl.engine.layout import Layout
from mmfl.errors import UserError
from mmfl.local import LocalPosition, LocalRule, LocalStep
from mmfl.tensors import to_device


@dataclass(frozen=True, eq=False, kw_only=True)
class JobTensors(LocalPosition):
    """Where jobs are in the whole parameter vector: `weights` [jobs, parameters] are trained in place, with `rates`
    [jobs, 1]; `loss_sums` [jobs] are the sums of the losses of all examples seen."""

    rates: Tensor
    loss_sums: Tensor

    def rows(self, rows: slice) -> "JobTensors":
        """The same tensors for some of the jobs, as views."""
        return JobTensors(
            weights=self.weights[rows],
            starts=self.starts,
            start_index=self.start_index[rows],
            correction=None if self.correction is None else self.correction[rows],
            state=tuple(vector[rows] for vector in self.state),
            rates=self.rates[rows],
            loss_sums=self.loss_sums[rows],
        )

    def piece(self, piece: slice) -> LocalPosition:
        """Where the jobs are in one piece of the vector, as views."""
        return LocalPosition(
            weights=self.weights[:, piece],
            starts=self.starts[:, piece],
            start_index=self.start_index,
            correction=None if self.correction is None else self.correction[:, piece],
            state=tuple(vector[:, piece] for vector in self.state),
        )

    def with_state(self, rule: LocalRule) -> "JobTensors":
        """With the rule's state vectors before the first step."""
        return replace(self, state=tuple(torch.zeros_like(self.weights) for _ in range(rule.state_vectors)))


@dataclass(frozen=True, eq=False)
class Cohort:
    """Jobs of one architecture and rule, sorted by their number of steps, most first; with their batches and tensors.

    `tensors.weights` are trained in place; in the end the updates replace them.
    """

    architecture: Architecture
    rule: LocalRule
    jobs: Jobs
    batches: Batches
    tensors: JobTensors

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        rule: LocalRule,
        jobs: Jobs,
        device_data: DeviceData,
        weights: Tensor | None = None,
    ) -> "Cohort":
        """Draws the batches; `weights` is the memory to train in, allocated here if not given."""
        starts, start_index = jobs.starts()
        tensors = JobTensors(
            weights=starts.new_empty(len(jobs), starts.shape[1]) if weights is None else weights,
            starts=starts,
            start_index=to_device(start_index, starts.device),
            correction=jobs.corrections(),
            rates=to_device(jobs.learning_rates(), starts.device)[:, None],
            loss_sums=starts.new_zeros(len(jobs)),
        )
        return cls(architecture, rule, jobs, Batches(jobs, device_data), tensors)

    def copy_starts(self, weights: Tensor) -> None:
        """Writes the weights that each job starts from into `weights` [jobs, parameters]."""
        torch.index_select(self.tensors.starts, 0, self.tensors.start_index, out=weights)

    def store_updates(self, trained: Tensor) -> None:
        """Writes the updates, starting minus trained weights [jobs, parameters], into `tensors.weights`."""
        starts = self.tensors.starts
        if len(starts) > 1:
            starts = starts[self.tensors.start_index]
        torch.sub(starts, trained, out=self.tensors.weights)


class LocalSteps:
    """Takes the local steps of some jobs, parameter by parameter.

    With `factored`, gradients of linear layers stay factored under every rule that adds to the gradient; without it
    only where nothing is added. It is off on a CPU, where the sum of gradient and offset is rounded before the step.
    """

    def __init__(self, rule: LocalRule, layout: Layout, tensors: JobTensors, factored: bool):
        self._rule, self._rates, self._factored = rule, tensors.rates, factored
        self._positions = [tensors.piece(piece) for piece in layout.slices]

    def take(self, gradients: Iterable[tuple[int, GradientParts]]) -> None:
        """One step, given the gradient of each parameter."""
        for n, parts in gradients:
            position = self._positions[n]
            subtract_gradient(self._direction(position, parts), position.weights, self._rates)

    def _direction(self, position: LocalPosition, parts: GradientParts) -> GradientParts:
        """The parts of what a step subtracts."""
        if not self._rule.adds_to_gradient:
            direction = self._rule.direction(LocalStep(**vars(position), gradient=dense_gradient(parts)))
            return [self._checked("direction", direction, position)]
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
