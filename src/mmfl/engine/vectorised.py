"""Vectorised training: all clients of a cohort at once, by vmap over a matrix of weights [jobs, parameters]."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import CohortBatch
from mmfl.engine.cohort import Cohort
from mmfl.engine.factored import GradientFactors, GradientParts
from mmfl.engine.local_steps import JobTensors, LocalSteps
from mmfl.engine.operators import Operators
from mmfl.engine.precision import to_float32
from mmfl.federation.objectives import per_example
from mmfl.local import LocalRule


class StepRunner(Protocol):
    """Runs the steps of a cohort: `weights` [jobs, parameters] as trained so far, `loss_sums` [jobs] the sum of the
    losses of all examples seen."""

    weights: Tensor
    loss_sums: Tensor

    def run(self, step: int, active: int) -> None:
        """A local step of the first `active` jobs."""
        ...


def train_steps(cohort: Cohort, runner: StepRunner) -> Tensor:
    """Runs all local steps, stores the updates in the cohort, and returns the jobs' sums of losses [jobs].

    Jobs are sorted by their number of steps, so those that still train are always the first ones.
    """
    steps = cohort.jobs.steps
    for step in range(int(steps[0])):
        runner.run(step, active=int(np.searchsorted(-steps, -step)))
    cohort.store_updates(runner.weights)
    return runner.loss_sums


def train_vectorised(cohort: Cohort) -> Tensor:
    """Trains a cohort; jobs that are done take no part in later steps. Returns the jobs' sums of losses [jobs]."""
    losses = train_steps(cohort, EagerSteps(cohort))
    cohort.architecture.functional.clear()
    return losses


class EagerSteps:
    """Runs each step when it is called, on the jobs that still train."""

    def __init__(self, cohort: Cohort):
        self._cohort = cohort
        self._tensors = replace(cohort.tensors, state=cohort.tensors.zero_state(cohort.rule))
        self.weights = cohort.tensors.weights
        cohort.copy_starts(self.weights)
        self.loss_sums = torch.zeros(len(cohort.jobs), device=self.weights.device)
        self._module = VmappedModule(cohort.architecture, self.weights.device)

    def run(self, step: int, active: int) -> None:
        """A local step of the first `active` jobs."""
        rows = slice(0, active)
        batch = self._cohort.batches.cohort(step, active, keys=self._cohort.architecture.addressed)
        on_gpu = self.weights.device.type != "cpu"
        CohortStep(self._module, self._cohort.rule, self._tensors.rows(rows), self.loss_sums[rows], on_gpu).run(batch)


class CohortStep:
    """One local step of a cohort: gradients of all jobs by vmap, then the rule; adds to `loss_sums` [jobs]."""

    def __init__(
        self, module: "VmappedModule", rule: LocalRule, tensors: JobTensors, loss_sums: Tensor, factored: bool
    ):
        self._module, self._weights, self._loss_sums = module, tensors.weights, loss_sums
        self._steps = LocalSteps(rule, module.architecture.layout, tensors, factored)

    def run(self, batch: CohortBatch) -> None:
        """The step on these mini-batches."""
        loss, gradients = self._module.differentiate(self._weights, batch)
        self._steps.take(gradients)
        self._loss_sums.add_(loss * batch.length)


class VmappedModule:
    """A module applied to many jobs at once, each with its own weights."""

    def __init__(self, architecture: Architecture, device: torch.device):
        self.architecture = architecture
        substitutes = architecture.cohort_operators(device)
        self.operators = Operators(substitutes) if substitutes else None
        self._vmapped = vmap(self._outputs, randomness="error")

    def _outputs(self, parameters: tuple[Tensor, ...], x: Tensor, *key: Tensor) -> Tensor:
        if self.operators and key:
            self.operators.begin(*key)
        return self.architecture.functional(parameters, x)

    def forward(self, parameters: tuple[Tensor, ...], x: Tensor) -> Tensor:
        """Outputs [jobs, examples, ...] without gradients, each job's at its own parameters."""
        if self.operators:
            self.operators.factors = GradientFactors(())
        with self.operators or nullcontext():
            return self._vmapped(parameters, x)

    def differentiate(self, weights: Tensor, batch: CohortBatch) -> tuple[Tensor, list[tuple[int, GradientParts]]]:
        """Mean batch losses [jobs] and their gradients, parameter by parameter.

        Only the module is vmapped: a loss has one value per example, whichever job the example belongs to.
        """
        layout = self.architecture.layout
        parameters = layout.parameters(weights)
        factors = GradientFactors(parameters)
        if self.operators:
            self.operators.factors = factors
        inputs = (batch.x,) if batch.key is None else (batch.x, batch.key)
        with self.operators or nullcontext():
            outputs = to_float32(self._vmapped(parameters, *inputs))
            losses = per_example(self.architecture.loss(outputs.flatten(0, 1), batch.y.flatten(0, 1)))
        loss = (losses.view(batch.share.shape) * batch.share).sum(1)
        return loss.detach(), layout.gradients(loss.sum(), parameters, factors)
