"""The vectorised way: many clients' local trainings as one, over a flat matrix of weights [jobs, parameters]."""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from mmfl.engine.architecture import Architecture
from mmfl.engine.chunk import Chunk
from mmfl.engine.operators import Operators
from mmfl.engine.precision import to_float32
from mmfl.engine.products import Factors, Product
from mmfl.federation.objectives import per_example


def train_cohort(chunk: Chunk) -> Tensor:
    """Fills `chunk.weights` with updates; returns the sum of the losses of all examples each job has seen, [jobs].

    Jobs come sorted by their number of steps, most first; those that are done leave the cohort at its end, so no
    step is computed for them.
    """
    jobs, device = chunk.jobs, chunk.weights.device
    steps = jobs.steps
    seen = torch.zeros(len(jobs), device=device)
    torch.index_select(chunk.starts, 0, chunk.which, out=chunk.weights)
    cohort = Cohort(chunk.architecture, device)
    for step in range(int(steps[0])):
        active = int(np.searchsorted(-steps, -step))
        x, y, share, length = chunk.batches.cohort(step, active)
        key = [chunk.batches.key(step, slice(0, active))] if chunk.architecture.addressed else []
        loss, gradients = cohort.differentiate(chunk.weights[:active], (x, *key), y, share)
        rows = slice(0, active)
        chunk.descend(chunk.pieces(chunk.weights[rows], rows), rows, gradients)
        seen[:active] += loss * length
    chunk.architecture.bare.clear()
    if len(chunk.starts) == 1:
        torch.sub(chunk.starts, chunk.weights, out=chunk.weights)
    else:
        chunk.weights.neg_().add_(chunk.starts[chunk.which])
    return seen


class Cohort:
    """One module structure applied to many jobs at once, each with its own weights."""

    def __init__(self, architecture: Architecture, device: torch.device):
        self.architecture = architecture
        substitutes = architecture.cohort_operators(device)
        self.operators = Operators(substitutes) if substitutes else None
        self.outputs = vmap(self._outputs, randomness="error")

    def _outputs(self, parameters: tuple[Tensor, ...], x: Tensor, *key: Tensor) -> Tensor:
        if self.operators and key:
            self.operators.begin(*key)
        return self.architecture.bare(parameters, x)

    def forward(self, parameters: tuple[Tensor, ...], *inputs: Tensor) -> Tensor:
        """Outputs [jobs, examples, ...], each job's at its own parameters."""
        with self.operators or nullcontext():
            return self.outputs(parameters, *inputs)

    def differentiate(
        self, weights: Tensor, inputs: Sequence[Tensor], y: Tensor, share: Tensor
    ) -> tuple[Tensor, list[tuple[int, list[Tensor | Product]]]]:
        """Mean batch losses [jobs] and their gradients, piece by piece, [jobs, piece].

        Only the module is batched over jobs: a loss has one value per example, whoever the example belongs to.
        """
        layout = self.architecture.layout
        parameters = layout.parameters(weights)
        factors = Factors(parameters)
        if self.operators:
            self.operators.factors = factors
        with self.operators or nullcontext():
            outputs = to_float32(self.outputs(parameters, *inputs))
            losses = per_example(self.architecture.loss(outputs.flatten(0, 1), y.flatten(0, 1))).view(share.shape)
        loss = (losses * share).sum(1)
        return loss.detach(), layout.gradients(loss.sum(), parameters, factors)
