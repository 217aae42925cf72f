"""Cohort: jobs that train together, and all they need for it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Batches
from mmfl.engine.device_data import DeviceData
from mmfl.engine.jobs import Jobs
from mmfl.engine.local_steps import JobTensors
from mmfl.local import LocalRule
from mmfl.tensors import to_device


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
        starts, index = jobs.starts()
        start_index = to_device(index, starts.device)
        batches = Batches(jobs, device_data)
        if weights is None:
            weights = starts.new_empty(len(jobs), starts.shape[1])
        rates = to_device(jobs.learning_rates(), starts.device)[:, None]
        tensors = JobTensors(weights, starts, start_index, rates, jobs.corrections())
        return cls(architecture, rule, jobs, batches, tensors)

    def copy_starts(self, weights: Tensor) -> None:
        """Writes the weights that each job starts from into `weights` [jobs, parameters]."""
        torch.index_select(self.tensors.starts, 0, self.tensors.start_index, out=weights)

    def store_updates(self, trained: Tensor) -> None:
        """Writes the updates, starting minus trained weights [jobs, parameters], into `tensors.weights`."""
        starts = self.tensors.starts
        if len(starts) > 1:
            starts = starts[self.tensors.start_index]
        torch.sub(starts, trained, out=self.tensors.weights)
