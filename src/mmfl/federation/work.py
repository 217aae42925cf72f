"""Work: what a local training asks of a device, counted from the model and the client's data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from mmfl.data.dataset import ELSEWHERE, as_inputs
from mmfl.data.structure import call_module, describe, rows
from mmfl.errors import UserError, first_line

if TYPE_CHECKING:
    from mmfl.federation.task import Task

_COPIES = 3  # of a model's weights that training holds: those it began with, the current ones and their gradient


@dataclass(frozen=True, eq=False)
class Work:
    """What one training of each client and task asks for.

    `examples` [clients, tasks] are those that a client has, which it passes over `epochs` times; `operations` [tasks]
    are those of a forward pass of one example, `parameters` [tasks] the model's trained numbers.
    """

    examples: NDArray[np.int64]
    epochs: NDArray[np.int64]
    operations: NDArray[np.float64]
    parameters: NDArray[np.int64]

    @classmethod
    def of(cls, tasks: "Sequence[Task]", examples: NDArray[np.int64]) -> "Work":
        """Counted once for each architecture."""
        known: dict[Any, tuple[float, int]] = {}
        counted = []
        for task in tasks:
            key = (task.model, None if task.data is ELSEWHERE else describe(rows(task.data.x, slice(1))))
            if key not in known:
                known[key] = _count(task)
            counted.append(known[key])
        operations, parameters = zip(*counted, strict=True)
        epochs = np.array([task.epochs for task in tasks], dtype=np.int64)
        return cls(examples, epochs, np.array(operations, dtype=np.float64), np.array(parameters, dtype=np.int64))

    @property
    def bytes(self) -> NDArray[np.int64]:
        """What travels each way, [tasks]: four bytes for each number."""
        return 4 * self.parameters

    @property
    def memory(self) -> NDArray[np.int64]:
        """Bytes that a training holds at least, [tasks]: the weights it began with, the current ones, the gradient."""
        return _COPIES * self.bytes


def _count(task: "Task") -> tuple[float, int]:
    """Operations of a forward pass of one example, and parameters that are trained."""
    if task.data is ELSEWHERE:
        raise UserError(f"task '{task.name}': its data is elsewhere, so devices cannot be simulated.")
    module = task.build().eval()
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), counter:
            call_module(module, as_inputs(rows(task.data.x, slice(1))))
    except Exception as error:
        raise UserError(f"task '{task.name}': the model's operations cannot be counted: {first_line(error)}") from None
    return float(counter.get_total_flops()), sum(p.numel() for p in module.parameters() if p.requires_grad)
