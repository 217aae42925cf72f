"""Losses of several tasks or replicas of one architecture as one forward pass, each with weights of its own.

A GPU takes as long to be told of a pass over a few thousand examples as to make it: then one pass is better than many,
and a recorded one better still.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmfl.data.dataset import as_inputs
from mmfl.engine.architecture import Architecture
from mmfl.engine.base import Workload
from mmfl.engine.cohort import Cohort
from mmfl.engine.precision import widened
from mmfl.engine.products import Factors
from mmfl.engine.recorded import Recorder
from mmfl.objectives import per_example
from mmfl.partition import Shards
from mmfl.transfer import sent

_WIDTH = 64  # recorded passes are a multiple of it wide


@torch.no_grad()
def losses_together(
    architecture: Architecture,
    workloads: Sequence[Workload],
    shards: Sequence[Shards],
    place: Callable[[Tensor], Tensor],
    most: int,
    recorder: Recorder | None = None,
) -> Tensor:
    """Mean losses of the workloads' clients, those of one workload after the other; at most so many examples at once.

    Rows are filled up to the longest with their last example; what is added makes a segment of its own, and is dropped.
    """
    device = workloads[0].weights.device
    length = -(-max(len(each.index) for each in shards) // _WIDTH) * _WIDTH
    index = sent(np.stack([np.pad(each.index, (0, length - len(each.index)), "edge") for each in shards]), device)
    weights = torch.stack([each.weights for each in workloads])
    tasks = [each.federation.tasks[each.task] for each in workloads]

    def batch(rows: Tensor) -> list[Tensor]:
        """Inputs and targets [workloads, rows, ...]."""
        bases = [task.data.x for task in tasks], [task.data.y for task in tasks]
        x, y = (torch.stack([place(b).index_select(0, r) for b, r in zip(base, rows, strict=True)]) for base in bases)
        return [as_inputs(x), y]

    if recorder and len(workloads) * length <= most and recorder.takes(architecture, len(workloads) * length):
        with torch.cuda.device_of(weights):
            values = _recorded(recorder, architecture, weights, *batch(index))
    else:
        wide = max(1, most // len(workloads))
        values = torch.cat([_pass(architecture, weights, *batch(rows)) for rows in index.split(wide, 1)], 1)
    segments = [np.append(each.sizes, length - len(each.index)) for each in shards]
    kept = np.concatenate([np.arange(len(each)) < len(each) - 1 for each in segments])
    means = torch.segment_reduce(values.double().flatten(), "mean", lengths=sent(np.concatenate(segments), device))
    return means[sent(np.flatnonzero(kept), device)]


def _pass(architecture: Architecture, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The loss of every example, [workloads, examples]."""
    cohort = Cohort(architecture, weights.device)
    if cohort.operators:
        cohort.operators.factors = Factors(())
    architecture.bare.module.eval()
    try:
        outputs = widened(cohort.forward(tuple(architecture.layout.views(weights)), x))
        return per_example(architecture.loss(outputs.flatten(0, 1), y.flatten(0, 1))).view(y.shape[:2])
    finally:
        architecture.bare.clear()
        architecture.bare.module.train()


@dataclass(eq=False)
class _Pass:
    """The tensors that a recorded pass always reads and writes, and how to make it."""

    weights: Tensor
    x: Tensor
    y: Tensor
    values: Tensor
    play: Callable[[], None]


def _recorded(recorder: Recorder, architecture: Architecture, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    def make() -> _Pass:
        made = _Pass(weights.clone(), x.clone(), y.clone(), weights.new_empty(y.shape[:2]), lambda: None)

        def once() -> None:
            made.values.copy_(_pass(architecture, made.weights, made.x, made.y))

        made.play = recorder.record(once)
        return made

    found = recorder.kept((architecture, "losses", *y.shape[:2]), make)
    for buffer, given in ((found.weights, weights), (found.x, x), (found.y, y)):
        buffer.copy_(given)
    found.play()
    return found.values
