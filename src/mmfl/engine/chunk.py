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

    `weights` [jobs, parameters] are the jobs' own, trained in place and in the end replaced by the updates;
    `starts[which]` are the weights they begin from.
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
        """Draws the batches; `weights` is where to train, made here if not given."""
        starts, which = jobs.starts()
        rows = torch.from_numpy(which).to(starts.device)
        batches = Batches(jobs, place, starts.device)
        if weights is None:
            weights = matrix(len(jobs), starts.shape[1], starts.device)
        return cls(architecture, rule, jobs, batches, starts, rows, weights)

    def begin(self, rows: slice) -> None:
        """Puts the starting weights into the rows of some jobs."""
        torch.index_select(self.starts, 0, self.which[rows], out=self.weights[rows])

    def finish(self, rows: slice) -> None:
        """Turns the trained weights of some jobs, in place, into updates: start minus end."""
        if len(self.starts) == 1:
            torch.sub(self.starts, self.weights[rows], out=self.weights[rows])
        else:
            self.weights[rows].neg_().add_(self.starts[self.which[rows]])
