"""Chunk: jobs that train at once, and all they need for it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Batches, Jobs
from mmfl.engine.memory import matrix
from mmfl.local import LocalRule


@dataclass(frozen=True, eq=False)
class Chunk:
    """Jobs of one architecture and rule with their batches and weights.

    `weights` [jobs, parameters] are the jobs' own, to be trained in place; `starts[which]` those they began from.
    """

    architecture: Architecture
    rule: LocalRule
    jobs: Jobs
    batches: Batches
    starts: Tensor
    which: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        rule: LocalRule,
        jobs: Jobs,
        place: Callable[[Tensor], Tensor],
        weights: Tensor | None = None,
    ) -> "Chunk":
        """Draws the batches and fills `weights` (made here, if not given) with the starting weights."""
        starts, which = jobs.starts()
        rows = torch.from_numpy(which).to(starts.device)
        batches = Batches(jobs, place, starts.device)
        if weights is None:
            weights = matrix(len(jobs), starts.shape[1], starts.device)
        torch.index_select(starts, 0, rows, out=weights)
        return cls(architecture, rule, jobs, batches, starts, rows, weights)

    def updates(self) -> None:
        """Turns the trained weights, in place, into updates: start minus end."""
        if len(self.starts) == 1:
            torch.sub(self.starts, self.weights, out=self.weights)
        else:
            self.weights.neg_().add_(self.starts[self.which])
