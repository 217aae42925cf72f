"""Chunk: jobs that train at once, and all they need for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Batches, Jobs
from mmfl.engine.placed import Placed
from mmfl.engine.products import Product
from mmfl.errors import UserError
from mmfl.local import SGD, LocalRule, LocalStep
from mmfl.tensors import to_device


@dataclass(frozen=True, eq=False)
class Chunk:
    """Jobs of one architecture and rule with their batches and weights.

    `weights` [jobs, parameters] are the jobs' own, trained in place and in the end replaced by the updates;
    `starts[which]` are the weights they begin from, `rates` [jobs, 1] their local step sizes, `corrections` what the
    rule adds to their gradients, if it does.
    """

    architecture: Architecture
    rule: LocalRule
    jobs: Jobs
    batches: Batches
    starts: Tensor
    which: Tensor
    rates: Tensor
    corrections: Tensor | None
    weights: Tensor

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        rule: LocalRule,
        jobs: Jobs,
        placed: Placed,
        weights: Tensor | None = None,
    ) -> "Chunk":
        """Draws the batches; `weights` is where to train, made here if not given."""
        starts, which = jobs.starts()
        rows = to_device(which, starts.device)
        batches = Batches(jobs, placed)
        if weights is None:
            weights = starts.new_empty(len(jobs), starts.shape[1])
        rates = to_device(jobs.learning_rates(), starts.device)[:, None]
        return cls(architecture, rule, jobs, batches, starts, rows, rates, jobs.corrections(), weights)

    def pieces(self, weights: Tensor, rows: slice) -> list[list[Tensor]]:
        """By parameter: the weights of some jobs, the starts of all, and the jobs' corrections if there are any."""
        corrections = [] if self.corrections is None else [self.corrections[rows]]
        return self.architecture.layout.pieces(weights, self.starts, *corrections)

    def descend(
        self,
        pieces: Sequence[Sequence[Tensor]],
        rows: slice,
        gradients: Iterable[tuple[int, Sequence[Tensor | Product]]],
    ) -> None:
        """A local step of some jobs, parameter by parameter."""
        which, rates, plain = self.which[rows], self.rates[rows], type(self.rule) is SGD
        for n, parts in gradients:
            weights, starts, *correction = pieces[n]
            if plain:
                take_off(parts, weights, rates)
            else:
                dense = [part.dense() if isinstance(part, Product) else part for part in parts]
                gradient = dense[0] if len(dense) == 1 else torch.stack(dense).sum(0)
                direction = self.rule.direction(LocalStep(gradient, weights, starts, which, *correction))
                if direction.shape != gradient.shape:  # it would be broadcast without a word
                    raise UserError(
                        f"local rule {type(self.rule).__name__}: a direction of shape {list(direction.shape)} for "
                        f"gradients {list(gradient.shape)}; expected the same [jobs, piece]."
                    )
                weights.addcmul_(direction, rates, value=-1)


def take_off(parts: Sequence[Tensor | Product], weights: Tensor, rates: Tensor) -> None:
    """A plain step down a gradient [jobs, piece] given in parts, one by one: a product is never multiplied out."""
    for part in parts:
        if isinstance(part, Product):
            part.subtract(rates, weights)
        else:
            weights.addcmul_(part, rates, value=-1)
