"""Recorded training: a cohort's local step is recorded once as a CUDA graph, and replayed for every step.

A local step is a hundred short kernels; unless the cohort is large, starting them one by one takes longer than running
them. A CUDA graph has a fixed number of jobs and a fixed batch width, so both are rounded up: padding has weight 0 and
changes nothing.
"""

import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Batches, CohortBatch
from mmfl.engine.cohort import Cohort
from mmfl.engine.gpu.recorder import Recorder
from mmfl.engine.gpu.streams import Stream
from mmfl.engine.jobs import Jobs
from mmfl.engine.local_steps import JobTensors
from mmfl.engine.vectorised import CohortStep, VmappedModule, train_steps
from mmfl.local import LocalRule


def can_record(recorder: Recorder, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> bool:
    """Whether the steps of these jobs can be recorded: small enough, and nothing in them depends on padding."""
    if architecture.coupled or architecture.addressed or not rule.is_recordable:
        return False
    return recorder.fits(architecture, len(jobs) * int(jobs.batch.max()))


def train_recorded(recorder: Recorder, cohort: Cohort) -> Tensor:
    """Trains as `train_vectorised` does; the results must not be used before `recorder.join`."""
    jobs, width = _round_jobs(len(cohort.jobs)), _round_width(int(cohort.jobs.batch.max()))
    starts = _round_starts(len(cohort.tensors.starts))
    key = (cohort.architecture, cohort.rule, jobs, width, starts, cohort.tensors.corrections is not None)
    stream = recorder.stream(width)
    recorder.hold(cohort)
    with torch.cuda.device_of(cohort.tensors.weights), stream.use():
        steps = recorder.get(key, lambda: RecordedSteps(cohort, jobs, width, starts, stream))
        steps.begin(cohort)
        losses = train_steps(cohort, steps).clone()
        steps.end()
    return losses


class RecordedSteps:
    """Runs steps by replaying a recorded one, which always reads and writes the tensors held here."""

    def __init__(self, cohort: Cohort, jobs: int, width: int, starts: int, stream: Stream):
        given, (x, y, share, length, _) = cohort.tensors, cohort.batches.cohort(0, 1)
        self._batch = CohortBatch(
            x[:, :1].repeat(jobs, width, *(1 for _ in x.shape[2:])),  # padding is a real example, with weight 0
            y[:, :1].repeat(jobs, width, *(1 for _ in y.shape[2:])),
            share.new_zeros(jobs, width),
            length.new_zeros(jobs),
        )
        weights = given.starts[:1].repeat(jobs, 1)
        self._tensors = JobTensors(
            weights,
            given.starts[:1].repeat(starts, 1),
            given.start_index.new_zeros(jobs),
            given.rates.new_zeros(jobs, 1),
            None if given.corrections is None else torch.zeros_like(weights),
            tuple(torch.zeros_like(weights) for _ in range(cohort.rule.state_vectors)),
        )
        self._all_loss_sums = share.new_zeros(jobs)
        module = VmappedModule(cohort.architecture, weights.device)
        step = CohortStep(module, cohort.rule, self._tensors, self._all_loss_sums, factored=True)
        self._replay = stream.record(lambda: step.run(self._batch))
        cohort.architecture.functional.clear()

    def begin(self, cohort: Cohort) -> None:
        """Copies the cohort's tensors in. Rows without a job keep what they had: their learning rate is 0."""
        jobs, given = len(cohort.jobs), cohort.tensors
        self._cohort: Cohort | None = cohort
        self._loaded = 0  # jobs whose batches are in the buffers
        self._full_batches = bool((cohort.jobs.batch == cohort.jobs.size).all())
        self.weights, self.loss_sums = self._tensors.weights[:jobs], self._all_loss_sums[:jobs]
        cohort.copy_starts(self.weights)
        self._tensors.starts[: len(given.starts)] = given.starts
        self._tensors.start_index[:jobs] = given.start_index
        if self._tensors.corrections is not None and given.corrections is not None:
            self._tensors.corrections[:jobs] = given.corrections
        for vector in self._tensors.state:
            vector.zero_()
        self._all_loss_sums.zero_()

    def end(self) -> None:
        """Releases the cohort and its memory."""
        self._cohort = None

    def run(self, step: int, active: int) -> None:
        """A local step of the first `active` jobs; full batches are the same at every step."""
        assert self._cohort is not None
        if not self._full_batches or active != self._loaded:
            self._load_batches(self._cohort.batches, step, active)
        if active != self._loaded:
            self._tensors.rates[:active] = self._cohort.tensors.rates[:active]
            self._tensors.rates[active:] = 0
            self._loaded = active
        self._replay()

    def _load_batches(self, batches: Batches, step: int, active: int) -> None:
        jobs, width = self._batch.share.shape
        positions, share, length = batches.padded(step, active, (jobs, width))
        given = *batches.gather(positions), torch.from_numpy(share), torch.from_numpy(length)
        for buffer, new in zip(self._batch[:4], given, strict=True):
            buffer.copy_(new, non_blocking=True)


def _round_jobs(jobs: int) -> int:
    """The next number of jobs that recordings are made for: four per doubling, or sixteen from 32 on.

    >>> [_round_jobs(n) for n in (1, 2, 3, 5, 7, 9, 13, 22, 33, 230)]
    [1, 2, 3, 6, 8, 12, 16, 24, 36, 240]
    """
    power = 1 << max(jobs - 1, 0).bit_length()
    step = max(power // (4 if power <= 32 else 16), 1)
    return -(-jobs // step) * step


def _round_width(batch: int) -> int:
    """The next multiple of 16."""
    return -(-batch // 16) * 16


def _round_starts(starts: int) -> int:
    """The next power of two, at least 4: the number of tasks that train differs from round to round."""
    return max(4, 1 << (starts - 1).bit_length())
