"""Vectorised training: all clients of a cohort at once, by vmap over a matrix of weights [jobs, parameters]."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.func import vmap

from mmfl.data.structure import Structure, leaves, map_tensors
from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import CohortBatch
from mmfl.engine.cohort import Cohort, JobTensors
from mmfl.engine.factored import GradientFactors
from mmfl.engine.local_steps import LocalSteps
from mmfl.engine.operators import Operators
from mmfl.engine.precision import to_float32
from mmfl.federation.objectives import per_example
from mmfl.federation.optimisers import Optimiser
from mmfl.local import LocalRule

# Torch says so of every operator that it batches in a loop; the engine measures whether a cohort is faster anyway.
warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the batching rule")


def train_vectorised(cohort: Cohort) -> None:
    """Trains a cohort, and stores updates and sums of losses in it. Jobs that are done take no part in later steps."""
    architecture, tensors = cohort.architecture, cohort.tensors.with_state(cohort.rule, cohort.optimiser)
    module = VmappedModule(architecture, tensors.weights.device)
    cohort.copy_starts(tensors)
    batches = cohort.batches.cohorts(keys=architecture.draws_addressed)
    for step, (active, batch) in enumerate(zip(cohort.jobs.active(), batches, strict=True)):
        on_gpu, jobs = tensors.weights.device.type != "cpu", slice(0, active)
        cohort.set_rates(tensors.rates[jobs], step, jobs)
        module.step(cohort.rule, cohort.optimiser, tensors.rows(jobs), batch, factored=on_gpu)
    cohort.store_updates(tensors.weights)
    architecture.functional.clear()


class VmappedModule:
    """A module applied to many jobs at once, each with its own weights."""

    def __init__(self, architecture: Architecture, device: torch.device):
        self.architecture = architecture
        substitutes = architecture.cohort_operators(device)
        self.operators = Operators(substitutes) if substitutes else None
        self._vmapped = vmap(self._outputs, randomness="error")

    def _outputs(
        self, parameters: Sequence[Tensor], statistics: Sequence[Tensor], x: Structure, *key: Tensor
    ) -> Structure:
        if self.operators and key:
            self.operators.begin(*key)
        return self.architecture.functional(parameters, statistics, x)

    def losses(
        self,
        parameters: Sequence[Tensor],
        statistics: Sequence[Tensor],
        factors: GradientFactors,
        x: Structure,
        y: Structure,
        *key: Tensor,
    ) -> Tensor:
        """The loss of every example, [jobs, examples], each job's at its own parameters.

        Only the module is vmapped: a loss has one value per example, whichever job the example belongs to.
        """
        if self.operators:
            self.operators.factors = factors
        with self.operators or nullcontext():
            outputs = to_float32(self._vmapped(tuple(parameters), tuple(statistics), x, *key))
            flat = (map_tensors(lambda leaf: leaf.flatten(0, 1), structure) for structure in (outputs, y))
            losses = per_example(self.architecture.loss(*flat))
        return losses.view(leaves(y)[0].shape[:2])

    def step(
        self, rule: LocalRule, optimiser: Optimiser, tensors: JobTensors, batch: CohortBatch, factored: bool
    ) -> None:
        """One local step of all jobs: gradients by vmap, then rule and optimiser; adds to the sums of losses."""
        layout = self.architecture.layout
        parameters = layout.parameters(tensors.weights)
        factors = GradientFactors(parameters)
        key = () if batch.key is None else (batch.key,)
        statistics = layout.statistics.views(tensors.statistics)
        loss = (self.losses(parameters, statistics, factors, batch.x, batch.y, *key) * batch.share).sum(1)
        gradients = layout.gradients(loss.sum(), parameters, factors)
        loss = loss.detach()  # which releases the graph
        LocalSteps(rule, optimiser, layout, tensors, factored).take(gradients)
        tensors.loss_sums.add_(loss * batch.length)
