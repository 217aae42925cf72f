"""Jobs: local trainings as parallel arrays, and the buckets of similar batch size they train in."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.engine.base import Training
from mmfl.randomness import bits
from mmfl.tensors import to_device

_BUSY_EXAMPLES = 1 << 14  # examples in a step that keep a device busy
_MAX_BUCKETS_PER_OCTAVE = 8


@dataclass(frozen=True, eq=False)
class Jobs:
    """Local trainings of one architecture and rule, as parallel arrays with a row per job.

    Job j is row `row[j]` of request `trainings[request[j]]`; its client has `size[j]` examples.
    """

    trainings: Sequence[Training]
    request: NDArray[np.int64]
    row: NDArray[np.int64]
    size: NDArray[np.int64]
    batch: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @classmethod
    def of(cls, trainings: Sequence[Training]) -> "Jobs":
        """All jobs of the requests."""
        counts = [len(training.client) for training in trainings]
        request = np.repeat(np.arange(len(trainings)), counts)
        sizes, batches, epochs = [], [], []
        for training in trainings:
            task = training.federation.tasks[training.task]
            size = training.federation.sizes[training.client, training.task]
            sizes.append(size)
            batches.append(task.batches(training.round, size))
            epochs.append(np.full(len(size), task.epochs))
        return cls(
            trainings,
            request,
            np.concatenate([np.arange(count) for count in counts]),
            np.concatenate(sizes),
            np.concatenate(batches),
            np.concatenate(epochs),
        )

    def __len__(self) -> int:
        return len(self.request)

    @cached_property
    def key(self) -> Tensor:
        """The address of each job's random numbers."""
        keys = torch.empty(len(self), dtype=torch.int64)
        for r in np.unique(self.request):
            training, rows = self.trainings[r], np.flatnonzero(self.request == r)
            client = torch.from_numpy(training.client[self.row[rows]])
            keys[torch.from_numpy(rows)] = bits(training.seed, training.round, training.task, client)
        return keys

    @property
    def steps(self) -> NDArray[np.int64]:
        """Local steps of each job, with the last, smaller batch of every epoch."""
        return self.epochs * -(-self.size // self.batch)

    @property
    def examples(self) -> NDArray[np.int64]:
        """Examples that each job sees, over all epochs."""
        return self.size * self.epochs

    def take(self, jobs: NDArray[np.int64]) -> "Jobs":
        """Some of the jobs, in the given order."""
        return Jobs(
            self.trainings,
            self.request[jobs],
            self.row[jobs],
            self.size[jobs],
            self.batch[jobs],
            self.epochs[jobs],
        )

    def buckets(self, exact: bool) -> list["Jobs"]:
        """Jobs of similar batch size, those with most steps first, so that little is padded.

        The bucket with the largest batches comes first: where buckets train at the same time, it takes longest.
        With `exact`, only jobs with the same batches at every step share a bucket: then nothing is padded.
        """
        bucket = -(self.size * (1 << 32) + self.batch) if exact else _bucket_numbers(self.batch)
        steps = self.steps
        order = np.lexsort((-steps, bucket))
        bounds = np.flatnonzero(np.diff(bucket[order])) + 1
        return [self.take(part) for part in np.split(order, bounds)]

    def learning_rates(self) -> NDArray[np.float32]:
        """The local learning rate of each job."""
        rates = [t.federation.tasks[t.task].learning_rate(t.round) for t in self.trainings]
        return np.asarray(rates, dtype=np.float32)[self.request]

    def starts(self) -> tuple[Tensor, NDArray[np.int64]]:
        """Distinct starting weights [starts, parameters], and which of them each job has."""
        used = np.bincount(self.request, minlength=len(self.trainings)) > 0
        starts = [self.trainings[r].weights for r in np.flatnonzero(used).tolist()]
        return torch.stack(starts), (np.cumsum(used) - 1)[self.request]

    def corrections(self) -> Tensor | None:
        """What is added to every gradient of each job, [jobs, parameters]; None where nothing is."""
        given = [t.correction for t in self.trainings]
        if all(correction is None for correction in given):
            return None
        length = len(self.trainings[0].weights)
        corrections = self.trainings[0].weights.new_zeros(len(self), length)
        for r in np.unique(self.request):
            correction = given[r]
            if correction is not None:
                rows = to_device(np.flatnonzero(self.request == r), corrections.device)
                corrections[rows] = correction[to_device(self.row[self.request == r], correction.device)]
        return corrections


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
