"""Cohort: jobs that train together, with their tensors."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Batches
from mmfl.engine.device_data import DeviceData
from mmfl.engine.jobs import Jobs
from mmfl.federation.optimisers import Optimiser
from mmfl.local import LocalPosition, LocalRule
from mmfl.tensors import to_device


@dataclass(frozen=True, eq=False, kw_only=True)
class JobTensors(LocalPosition):
    """Where jobs are in the whole parameter vector: `weights` [jobs, parameters] are trained in place, with `rates`
    [jobs, 1]; `loss_sums` [jobs] are the sums of the losses of all examples seen, and `statistics` [jobs, values] those
    of batch norm. `optimiser_state` [jobs, values] has the optimiser's state vectors, one after another, and its number
    of steps."""

    rates: Tensor
    loss_sums: Tensor
    statistics: Tensor
    optimiser_state: Tensor

    def rows(self, rows: slice) -> "JobTensors":
        """The same tensors for some of the jobs, as views."""
        return JobTensors(
            weights=self.weights[rows],
            starts=self.starts,
            start_index=self.start_index[rows],
            number=self.number[rows],
            correction=None if self.correction is None else self.correction[rows],
            state=tuple(vector[rows] for vector in self.state),
            rates=self.rates[rows],
            loss_sums=self.loss_sums[rows],
            statistics=self.statistics[rows],
            optimiser_state=self.optimiser_state[rows],
        )

    def piece(self, piece: slice) -> LocalPosition:
        """Where the jobs are in one piece of the vector, as views."""
        return LocalPosition(
            weights=self.weights[:, piece],
            starts=self.starts[:, piece],
            start_index=self.start_index,
            number=self.number,
            correction=None if self.correction is None else self.correction[:, piece],
            state=tuple(vector[:, piece] for vector in self.state),
        )

    def batch_norm(self, shared: int) -> Tensor:
        """What jobs have of batch norm besides the `shared` first weights, once the updates are in place of these."""
        trained = self.starts[:, shared:][self.start_index] - self.weights[:, shared:]
        return torch.cat([trained, self.statistics], 1)

    def with_state(self, rule: LocalRule, optimiser: Optimiser) -> "JobTensors":
        """With the state vectors of the rule, and the state of the optimiser where there is none to go on with, before
        the first step."""
        state, kept = tuple(torch.zeros_like(self.weights) for _ in range(rule.state_vectors)), self.optimiser_state
        if not kept.shape[1]:
            kept = self.weights.new_zeros(len(self.weights), optimiser.state_values(self.weights.shape[1]))
        return replace(self, state=state, optimiser_state=kept)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Jobs of one architecture, rule and optimiser, sorted by their number of steps, most first; with their batches and
    tensors.

    `tensors.weights` are trained in place; in the end the updates replace them. Where clients keep the state of their
    optimisers, `tensors.optimiser_state` is what they go on with, and is changed in place too. `statistics` [jobs,
    values] are those of batch norm that jobs begin with. `step_rates` [steps, jobs] are the learning rates of local
    steps, where they differ.
    """

    architecture: Architecture
    rule: LocalRule
    jobs: Jobs
    batches: Batches
    tensors: JobTensors
    statistics: Tensor
    step_rates: Tensor | None

    @property
    def optimiser(self) -> Optimiser:
        """The one that all jobs share."""
        return self.jobs.optimiser

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
        starts, start_index, statistics = jobs.starts(architecture.layout, architecture.batch_norm)
        tensors = JobTensors(
            weights=starts.new_empty(len(jobs), starts.shape[1]) if weights is None else weights,
            starts=starts,
            start_index=to_device(start_index, starts.device),
            number=starts.new_zeros(len(jobs), 1, dtype=torch.float64),
            correction=jobs.corrections(starts),
            rates=to_device(jobs.learning_rates(), starts.device)[:, None],
            loss_sums=starts.new_zeros(len(jobs)),
            statistics=torch.empty_like(statistics),
            optimiser_state=jobs.optimiser_state(starts),
        )
        step_rates = jobs.step_rates()
        placed = None if step_rates is None else to_device(step_rates, starts.device)
        return cls(architecture, rule, jobs, Batches(jobs, device_data), tensors, statistics, placed)

    def set_rates(self, rates: Tensor, step: int, jobs: slice) -> None:
        """Writes the learning rates of these jobs at a step into `rates` [jobs, 1], where they differ by step."""
        if self.step_rates is not None:
            rates.copy_(self.step_rates[step, jobs, None])

    def copy_starts(self, tensors: JobTensors) -> None:
        """Writes the weights and statistics that each job starts from into these tensors."""
        torch.index_select(self.tensors.starts, 0, self.tensors.start_index, out=tensors.weights)
        tensors.statistics.copy_(self.statistics)

    def store_updates(self, trained: Tensor) -> None:
        """Writes the updates, starting minus trained weights [jobs, parameters], into `tensors.weights`."""
        starts = self.tensors.starts
        if len(starts) > 1:
            starts = starts[self.tensors.start_index]
        torch.sub(starts, trained, out=self.tensors.weights)
