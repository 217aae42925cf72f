"""Losses of several tasks or replicas of one architecture as one forward pass, each with weights of its own.

A GPU takes as long to be told of a pass over a few thousand examples as to make it: then one pass is better than many.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from mmfl.data.dataset import as_inputs
from mmfl.engine.architecture import Architecture
from mmfl.engine.base import Workload
from mmfl.engine.cohort import Cohort
from mmfl.engine.precision import widened
from mmfl.engine.products import Factors
from mmfl.objectives import per_example
from mmfl.partition import Shards
from mmfl.transfer import sent


@torch.no_grad()
def losses_together(
    architecture: Architecture,
    workloads: Sequence[Workload],
    shards: Sequence[Shards],
    place: Callable[[Tensor], Tensor],
    most: int,
) -> Tensor:
    """Mean losses of the workloads' clients, those of one workload after the other; at most so many examples at once.

    Rows are filled up to the longest with their last example; what is added makes a segment of its own, and is dropped.
    """
    device = workloads[0].weights.device
    length = max(len(each.index) for each in shards)
    index = np.stack([np.pad(each.index, (0, length - len(each.index)), "edge") for each in shards])
    segments = [np.append(each.sizes, length - len(each.index)) for each in shards]
    kept = np.concatenate([np.arange(len(each)) < len(each) - 1 for each in segments])
    values = _values(architecture, workloads, sent(index, device), place, max(1, most // len(workloads)))
    means = torch.segment_reduce(values.flatten(), "mean", lengths=sent(np.concatenate(segments), device))
    return means[sent(np.flatnonzero(kept), device)]


def _values(
    architecture: Architecture,
    workloads: Sequence[Workload],
    index: Tensor,
    place: Callable[[Tensor], Tensor],
    wide: int,
) -> Tensor:
    """The loss of every example, [workloads, examples]."""
    tasks = [each.federation.tasks[each.task] for each in workloads]
    parameters = architecture.layout.views(torch.stack([each.weights for each in workloads]))
    cohort = Cohort(architecture, index.device)
    if cohort.operators:
        cohort.operators.factors = Factors(())
    architecture.bare.module.eval()
    try:
        columns = []
        for rows in index.split(wide, 1):
            x, y = (
                torch.stack([place(data).index_select(0, mine) for data, mine in zip(bases, rows, strict=True)])
                for bases in ([task.data.x for task in tasks], [task.data.y for task in tasks])
            )
            outputs = widened(cohort.forward(tuple(parameters), as_inputs(x)))
            columns.append(per_example(architecture.loss(outputs.flatten(0, 1), y.flatten(0, 1))).view(rows.shape))
    finally:
        architecture.bare.clear()
        architecture.bare.module.train()
    return torch.cat(columns, 1).double()
