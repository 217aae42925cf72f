"""Jobs: local trainings as parallel arrays, and the buckets of similar batch size they train in."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.engine.base import Training
from mmfl.engine.layout import Layout
from mmfl.federation.optimisers import Optimiser
from mmfl.randomness import bits
from mmfl.tensors import to_device

_BUSY_EXAMPLES = 1 << 14  # examples in a step that keep a device busy
_MAX_BUCKETS_PER_OCTAVE = 8


@dataclass(frozen=True, eq=False)
class Jobs:
    """Local trainings of one architecture, rule and optimiser, as parallel arrays with a row per job.

    Job j is row `row[j]` of request `trainings[request[j]]`; its client has `size[j]` examples, from position
    `offset[j]` of its task's shards on.
    """

    trainings: Sequence[Training]
    request: NDArray[np.int64]
    row: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    batch: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @classmethod
    def of(cls, trainings: Sequence[Training]) -> "Jobs":
        """All jobs of the requests."""
        return cls(trainings, *np.concatenate([_columns(*pair) for pair in enumerate(trainings)], 1))

    def __len__(self) -> int:
        return len(self.request)

    def by_request(self) -> Iterator[tuple[Training, NDArray[np.int64]]]:
        """The requests that have jobs here, each with the numbers of its jobs."""
        for r in np.unique(self.request).tolist():
            yield self.trainings[r], np.flatnonzero(self.request == r)

    def describe(self, job: int, step: int) -> str:
        """Whose training a job is, and where it is at a local step, from 0."""
        training = self.trainings[self.request[job]]
        client = training.federation.describe_client(int(training.client[self.row[job]]))
        task = training.federation.tasks[training.task].name
        return f"task '{task}': training fails ({client}, round {training.round}, local step {step + 1})"

    @cached_property
    def key(self) -> Tensor:
        """The address of each job's random numbers."""
        keys = torch.empty(len(self), dtype=torch.int64)
        for training, jobs in self.by_request():
            client = training.client[self.row[jobs]]
            address = training.address_of(client)
            number = address if isinstance(address, int) else torch.from_numpy(address)
            keys[torch.from_numpy(jobs)] = bits(training.seed, number, training.task, torch.from_numpy(client))
        return keys

    @property
    def steps(self) -> NDArray[np.int64]:
        """Local steps of each job, with the last, smaller batch of every epoch."""
        return self.epochs * -(-self.size // self.batch)

    @property
    def examples(self) -> NDArray[np.int64]:
        """Examples that each job sees, over all epochs."""
        return self.size * self.epochs

    def active(self) -> list[int]:
        """How many jobs still train at each step. They are sorted by steps, so these are the first ones."""
        steps = self.steps
        active: list[int] = np.searchsorted(-steps, -np.arange(steps[0])).tolist()
        return active

    def take(self, jobs: NDArray[np.int64] | slice) -> "Jobs":
        """Some of the jobs, in the given order."""
        columns = self.request, self.row, self.offset, self.size, self.batch, self.epochs
        return Jobs(self.trainings, *(column[jobs] for column in columns))

    def in_buckets(self, exact: bool) -> tuple["Jobs", list[slice]]:
        """The jobs sorted into buckets of similar batch size, those with most steps first, so that little is padded.

        The bucket with the largest batches comes first: where buckets train at the same time, it takes longest.
        With `exact`, only jobs with the same batches at every step share a bucket: then nothing is padded.
        """
        bucket = -(self.size * (1 << 32) + self.batch) if exact else _bucket_numbers(self.batch)
        order = np.lexsort((-self.steps, bucket))
        bounds = [0, *(np.flatnonzero(np.diff(bucket[order])) + 1).tolist(), len(self)]
        return self.take(order), [slice(*pair) for pair in itertools.pairwise(bounds)]

    def learning_rates(self) -> NDArray[np.float32]:
        """The local learning rate of each job."""
        rates = [t.federation.tasks[t.task].learning_rate(t.round) for t in self.trainings]
        return np.asarray(rates, dtype=np.float32)[self.request]

    def step_rates(self) -> NDArray[np.float32] | None:
        """The learning rate of each job at each step, [steps, jobs]; None where it is the same at all of them."""
        if not any(t.federation.tasks[t.task].lr_steps for t in self.trainings):
            return None
        factors = np.ones((int(self.steps.max()), len(self)))
        for training, jobs in self.by_request():
            task = training.federation.tasks[training.task]
            for steps in np.unique(self.steps[jobs]).tolist():
                factors[:steps, jobs[self.steps[jobs] == steps]] = task.step_factors(steps)[:, None]
        return (factors * self.learning_rates()).astype(np.float32)

    @property
    def optimiser(self) -> Optimiser:
        """The one that all jobs share."""
        return self.trainings[0].federation.tasks[self.trainings[0].task].optimiser

    def starts(self, layout: Layout, initial: Tensor) -> tuple[Tensor, NDArray[np.int64], Tensor]:
        """Distinct starting weights [starts, parameters], which of them each job has, and the statistics of batch norm
        that each job begins with, [jobs, values]: `initial` where a request has none."""
        requests, start = np.unique(self.request, return_inverse=True)
        weights = torch.stack([self.trainings[r].weights for r in requests.tolist()])
        if not len(initial):
            return weights, start, weights.new_empty(len(self), 0)
        batch_norm = weights.new_empty(len(self), len(initial))
        for training, jobs in self.by_request():
            given = initial[None] if training.batch_norm is None else training.batch_norm
            rows = self.row[jobs] if len(given) > 1 else np.zeros_like(jobs)
            batch_norm[to_device(jobs, weights.device)] = given[to_device(rows, given.device)]
        if layout.shared == layout.length:
            return weights, start, batch_norm
        parameters, statistics = layout.split(weights[to_device(start, weights.device)], batch_norm)
        return parameters, np.arange(len(self)), statistics

    def corrections(self, weights: Tensor) -> Tensor | None:
        """What is added to every gradient of each job, [jobs, parameters], in the shape and place of `weights`; None
        where nothing is."""
        return self._gather(lambda training: training.correction, weights, weights.shape[1])

    def optimiser_state(self, weights: Tensor) -> Tensor:
        """The state that each job's optimiser goes on with, [jobs, values], in the place of `weights` [jobs,
        parameters]; no values where clients keep none."""
        values = self.optimiser.state_values(weights.shape[1])
        found = self._gather(lambda training: training.optimiser_state, weights, values)
        return weights.new_empty(len(self), 0) if found is None else found

    def _gather(self, given_by: Callable[[Training], Tensor | None], like: Tensor, columns: int) -> Tensor | None:
        """The rows of each job, [jobs, columns], in what requests give for their clients; zeros where one gives fewer
        columns or none, None where no request gives any."""
        if all(given_by(training) is None for training in self.trainings):
            return None
        gathered = like.new_zeros(len(self), columns)
        for training, jobs in self.by_request():
            if (given := given_by(training)) is not None:
                rows = to_device(self.row[jobs], given.device)
                gathered[to_device(jobs, like.device), : given.shape[1]] = given[rows]
        return gathered


def _columns(request: int, training: Training) -> NDArray[np.int64]:
    """The columns of a request's jobs: request, row, offset, size, batch and epochs."""
    task, client = training.federation.tasks[training.task], training.client
    size = training.federation.sizes[client, training.task]
    offset = training.federation.shards[training.task].offset[client]
    same = np.ones_like(client)
    batch = task.batches(training.round, size)
    return np.stack([request * same, np.arange(len(client)), offset, size, batch, task.epochs * same])


def _bucket_numbers(batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each batch size, numbered from the largest.

    A bucket holds the sizes above half of its largest, so that at most half of a step is padding. Where there is so
    much work that a part of it keeps the device busy, it is split into up to eight narrower buckets.

    >>> _bucket_numbers(np.array([9, 40, 15, 12]))
    array([1, 0, 1, 1])
    >>> np.unique(_bucket_numbers(np.repeat([9, 12, 15], 5000)))
    array([0, 1, 2])
    """
    numbers, left, number = np.empty(len(batch), dtype=np.int64), np.ones(len(batch), dtype=bool), 0
    while left.any():
        largest = batch[left].max()
        work = batch[left & (2 * batch > largest)].sum()
        parts = min(2 ** int(np.log2(max(work / _BUSY_EXAMPLES, 1))), _MAX_BUCKETS_PER_OCTAVE)
        near = left & (batch > largest * 2 ** (-1 / parts))
        numbers[near] = number
        left &= ~near
        number += 1
    return numbers
