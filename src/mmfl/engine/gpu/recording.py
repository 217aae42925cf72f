"""Recorded training: a cohort's local step is recorded once as a CUDA graph, and replayed for every step.

A local step is a hundred short kernels; unless the cohort is large, starting them one by one takes longer than running
them. A CUDA graph has a fixed number of jobs and a fixed batch width, so both are rounded up: padding has weight 0 and
changes nothing.
"""

import itertools
from functools import partial

import torch
from torch import Tensor

from mmfl.data.structure import map_leaves
from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import CohortBatch
from mmfl.engine.cohort import Cohort, JobTensors
from mmfl.engine.gpu.recorder import Recorder, Stream
from mmfl.engine.jobs import Jobs
from mmfl.engine.vectorised import VmappedModule
from mmfl.local import LocalRule
from mmfl.randomness import Purpose


def can_record(recorder: Recorder, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> bool:
    """Whether the steps of these jobs can be recorded: small enough, and nothing in them depends on padding."""
    if architecture.coupled or not rule.is_recordable:
        return False
    return recorder.fits(architecture, len(jobs) * int(jobs.batch.max()))


def train_recorded(recorder: Recorder, cohort: Cohort) -> None:
    """Trains as `train_vectorised` does; the results must not be used before `recorder.join`."""
    jobs, width = _round_jobs(len(cohort.jobs)), -(-int(cohort.jobs.batch.max()) // 16) * 16
    # The number of tasks that train differs from round to round.
    starts = max(4, 1 << (len(cohort.tensors.starts) - 1).bit_length())
    key = (
        cohort.architecture,
        cohort.rule,
        cohort.optimiser,
        jobs,
        width,
        starts,
        cohort.tensors.correction is not None,
    )
    stream = recorder.stream(width)
    recorder.hold(cohort)
    with torch.cuda.device_of(cohort.tensors.weights), stream.use():
        recorder.get(key, lambda: RecordedStep(cohort, jobs, width, starts, stream)).train(cohort)


class RecordedStep:
    """A recorded step, and the tensors that it always reads and writes."""

    def __init__(self, cohort: Cohort, jobs: int, width: int, starts: int, stream: Stream):
        given, first = cohort.tensors, next(cohort.batches.gather([(0, 1)]))
        self._batch = CohortBatch(
            map_leaves(partial(_repeat, jobs, width), first.x),  # padding is a real example, with weight 0
            map_leaves(partial(_repeat, jobs, width), first.y),
            given.rates.new_zeros(jobs, width),
            given.start_index.new_zeros(jobs),
            given.start_index.new_zeros(jobs) if cohort.architecture.draws_addressed else None,
        )
        weights = given.starts[:1].repeat(jobs, 1)
        self._tensors = JobTensors(
            weights=weights,
            starts=given.starts[:1].repeat(starts, 1),
            start_index=given.start_index.new_zeros(jobs),
            number=given.number.new_zeros(jobs, 1),
            correction=None if given.correction is None else torch.zeros_like(weights),
            rates=given.rates.new_zeros(jobs, 1),
            loss_sums=given.loss_sums.new_zeros(jobs),
            statistics=cohort.statistics[:1].repeat(jobs, 1),
            optimiser_state=weights.new_empty(jobs, 0),
        ).with_state(cohort.rule, cohort.optimiser)
        rule, optimiser = cohort.rule, cohort.optimiser
        module = VmappedModule(cohort.architecture, weights.device)
        self._replay = stream.record(lambda: module.step(rule, optimiser, self._tensors, self._batch, factored=True))
        cohort.architecture.functional.clear()

    def train(self, cohort: Cohort) -> None:
        """All local steps of a cohort; full batches are the same at every step."""
        self._copy_from(cohort)
        own, loaded = self._tensors, 0  # jobs whose batches are in the buffers
        full_batches = bool((cohort.jobs.batch == cohort.jobs.size).all()) and cohort.batches.augment is None
        steps = list(enumerate(cohort.jobs.active()))
        changed = [not full_batches or step == 0 or active != steps[step - 1][1] for step, active in steps]
        jobs, width = self._batch.share.shape
        keys = None if self._batch.key is None else cohort.batches.step_keys(len(steps), Purpose.DROPOUT)
        batches = cohort.batches.gather(itertools.compress(steps, changed), (jobs, width))
        for step, active in steps:
            if changed[step]:
                copy = partial(Tensor.copy_, non_blocking=True)
                map_leaves(copy, tuple(self._batch[:4]), tuple(next(batches)[:4]))
            if active != loaded:
                self._store_optimiser_state(cohort, slice(active, loaded))  # padding would change it
                own.rates[:active] = cohort.tensors.rates[:active]
                own.rates[active:] = 0
                loaded = active
            cohort.set_rates(own.rates[:active], step, slice(0, active))
            if keys is not None and self._batch.key is not None:
                self._batch.key[: len(cohort.jobs)] = keys[step]
            self._replay()
        self._store_optimiser_state(cohort, slice(loaded))
        cohort.store_updates(own.weights[: len(cohort.jobs)])
        cohort.tensors.loss_sums.copy_(own.loss_sums[: len(cohort.jobs)])
        cohort.tensors.statistics.copy_(own.statistics[: len(cohort.jobs)])

    def _copy_from(self, cohort: Cohort) -> None:
        """Copies the cohort's tensors. Rows without a job keep what they had: their learning rate is 0."""
        jobs, own, given = len(cohort.jobs), self._tensors, cohort.tensors
        cohort.copy_starts(own.rows(slice(jobs)))
        own.starts[: len(given.starts)] = given.starts
        own.start_index[:jobs] = given.start_index
        if own.correction is not None and given.correction is not None:
            own.correction[:jobs] = given.correction
        for vector in (*own.state, own.optimiser_state, own.loss_sums, own.number):
            vector.zero_()
        if given.optimiser_state.shape[1]:
            own.optimiser_state[:jobs] = given.optimiser_state

    def _store_optimiser_state(self, cohort: Cohort, jobs: slice) -> None:
        """Copies the state of these jobs' optimisers into the cohort, where clients keep it."""
        if cohort.tensors.optimiser_state.shape[1]:
            cohort.tensors.optimiser_state[jobs] = self._tensors.optimiser_state[jobs]


def _repeat(jobs: int, width: int, leaf: Tensor) -> Tensor:
    """The first example [1, examples, ...] in all places of a batch [jobs, width, ...]."""
    return leaf[:, :1].repeat(jobs, width, *(1 for _ in leaf.shape[2:]))


def _round_jobs(jobs: int) -> int:
    """The next number of jobs that recordings are made for: four per doubling, or sixteen from 32 on.

    >>> [_round_jobs(n) for n in (1, 2, 3, 5, 7, 9, 13, 22, 33, 230)]
    [1, 2, 3, 6, 8, 12, 16, 24, 36, 240]
    """
    power = 1 << max(jobs - 1, 0).bit_length()
    step = max(power // (4 if power <= 32 else 16), 1)
    return -(-jobs // step) * step
