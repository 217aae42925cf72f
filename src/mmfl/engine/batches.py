"""Batches: which examples each job sees at each local step."""

import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.augmentation import Random
from mmfl.data.dataset import as_inputs
from mmfl.data.lazy import Rows, is_lazy
from mmfl.data.structure import Structure, map_leaves, select
from mmfl.engine.device_data import DeviceData
from mmfl.engine.jobs import Jobs
from mmfl.randomness import Purpose, bits
from mmfl.tensors import to_device


class CohortBatch(NamedTuple):
    """One mini-batch of each job of a cohort.

    Inputs and targets [jobs, width, ...], the weight of each example in its job's mean loss [jobs, width], batch sizes
    [jobs], and the address of each job's random numbers at this step, where the module draws any.
    """

    x: Structure
    y: Structure
    share: Tensor
    length: Tensor
    key: Tensor | None = None


class Batches:
    """The mini-batches of some jobs: without replacement, in an order addressed by job and epoch.

    A full batch keeps the order of the client's data. `x` and `y` are the pool of all examples where there is one,
    otherwise the jobs' examples, gathered once; those that are read when needed are read ahead. `order` holds rows of
    them in the order of use, job after job and epoch after epoch; those of job j begin at `first[j]`.
    """

    def __init__(self, jobs: Jobs, device_data: DeviceData):
        self.device, self.jobs = device_data.device, jobs
        self.per_epoch = -(-jobs.size // jobs.batch)
        rows = self._find_rows(jobs, device_data)
        self.first, self.order = self._shuffle(jobs, rows)
        training = jobs.trainings[0]
        self.augment = training.federation.tasks[training.task].augmentation  # that of all jobs
        self._device_data, self._lazy = device_data, is_lazy((self.x, self.y))
        self._host_order: Rows = self.order.cpu().numpy() if self._lazy else jobs.size[:0]

    def _find_rows(self, jobs: Jobs, device_data: DeviceData) -> Tensor:
        """Sets `x` and `y`, and returns the rows of each job's examples, job after job."""
        data = [t.federation.tasks[t.task].data for t in jobs.trainings]
        end, request = np.cumsum(jobs.size), np.repeat(jobs.request, jobs.size)
        examples = {r: np.flatnonzero(request == r) for r in np.unique(jobs.request).tolist()}
        position = np.repeat(jobs.offset - (end - jobs.size), jobs.size) + np.arange(end[-1])
        rows = np.empty_like(position)
        for r, own in examples.items():
            training = jobs.trainings[r]
            rows[own] = training.federation.shards[training.task].index[position[own]]
        pool = device_data.pool(data)
        if pool:
            self.x, self.y = pool.x, pool.y
            return to_device(rows + np.array([pool.first_row[each] for each in data])[request], self.device)
        picked = {r: to_device(rows[own], self.device) for r, own in examples.items()}
        parts = [select(device_data((data[r].x, data[r].y)), own) for r, own in picked.items()]
        self.x, self.y = map_leaves(lambda *leaves: torch.cat(leaves), *parts)
        place = np.empty_like(rows)
        place[np.concatenate(list(examples.values()))] = np.arange(len(rows))
        return to_device(place, self.device)

    def _shuffle(self, jobs: Jobs, rows: Tensor) -> tuple[NDArray[np.int64], Tensor]:
        """`first` and `order`. Each (job, epoch) is a segment; one sort by (segment, random bits) shuffles them all."""
        epochs = np.where(jobs.batch < jobs.size, jobs.epochs, 1)
        used = jobs.size * epochs
        first = np.cumsum(used) - used
        if (jobs.batch == jobs.size).all():
            return first, rows
        job = np.repeat(np.arange(len(jobs)), epochs)
        epoch = np.arange(len(job)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
        length = jobs.size[job]
        begin, end = torch.from_numpy(np.cumsum(jobs.size)[job] - length), torch.from_numpy(np.cumsum(length))
        key = bits(jobs.key[torch.from_numpy(job)], int(Purpose.BATCHES), torch.from_numpy(epoch))
        whole = torch.from_numpy(jobs.batch[job] == length)
        columns = torch.stack([begin, end - torch.from_numpy(length), key, whole.long()])
        segment = torch.arange(len(job), device=self.device).repeat_interleave(
            to_device(length, self.device), output_size=int(length.sum())
        )
        begin, before, key, whole = columns.to(self.device, non_blocking=True)[:, segment]
        place = torch.arange(len(segment), device=self.device) - before
        chance = torch.where(whole > 0, place, (bits(key, place) >> 24) & ((1 << 40) - 1))
        order = torch.argsort((segment << 40) | chance)
        return first, rows[(begin + place)[order]]

    @cached_property
    def keys(self) -> Tensor:
        """The jobs' keys, on the device."""
        return self.jobs.key.to(self.device, non_blocking=True)

    def position(self, step: int | NDArray[np.int64], jobs: slice | int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where in `order` the batches of a step (or of several steps of one job) begin, and their sizes."""
        size, batch = self.jobs.size[jobs], self.jobs.batch[jobs]
        epoch, within = np.divmod(step, self.per_epoch[jobs])
        within = within * batch
        return self.first[jobs] + np.where(batch < size, epoch * size, 0) + within, np.minimum(batch, size - within)

    def cohorts(self, keys: bool = False) -> Iterator[CohortBatch]:
        """The batches of all active jobs, step by step, with the keys of their random numbers if asked for."""
        steps = list(enumerate(self.jobs.active()))
        for (step, active), batch in zip(steps, self.gather(steps), strict=True):
            share, length = (part.to(self.device, non_blocking=True) for part in (batch.share, batch.length))
            key = self.key(step, slice(0, active), Purpose.DROPOUT) if keys else None
            yield CohortBatch(batch.x, batch.y, share, length, key)

    def gather(self, steps: Iterable[tuple[int, int]], shape: tuple[int, int] | None = None) -> Iterator[CohortBatch]:
        """The batches of the first `active` jobs at each (step, active), padded to the widest or to a larger shape
        [jobs, width]; with weights and sizes on the CPU.

        The weights of a row sum to 1; padding has weight 0, and so have all rows without a job.
        """
        steps, requested = itertools.tee(steps)
        padded, places = itertools.tee(self._pad(step, active, shape) for step, active in requested)
        examples = self._read(positions.reshape(-1) for positions, _, _ in places)
        for (step, active), (positions, share, length), (x, y) in zip(steps, padded, examples, strict=True):
            jobs, width = positions.shape
            x = self._augment(x, step, slice(0, active), jobs, width)
            unflatten = partial(torch.unflatten, dim=0, sizes=(jobs, width))
            x, y = map_leaves(unflatten, x), map_leaves(unflatten, y)
            yield CohortBatch(x, y, torch.from_numpy(share), torch.from_numpy(length))

    def _pad(
        self, step: int, active: int, shape: tuple[int, int] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """Positions of examples in `order` [jobs, width], their weights [jobs, width] and the batch sizes [jobs]."""
        begins, lengths = self.position(step, slice(0, active))
        jobs, width = shape or (active, int(lengths.max()))
        begin, length = np.zeros((2, jobs), dtype=np.int64)
        begin[:active], length[:active] = begins, lengths
        column, count = np.arange(width), np.maximum(length, 1)[:, None]
        positions = begin[:, None] + np.minimum(column, count - 1)
        return positions, ((column < length[:, None]) / count).astype(np.float32), length

    def of_job(self, job: int) -> Iterator[tuple[Structure, Structure]]:
        """Inputs and targets of one job's batches, step by step."""
        begins, lengths = (each.tolist() for each in self.position(np.arange(self.jobs.steps[job]), job))
        places = (slice(begin, begin + length) for begin, length in zip(begins, lengths, strict=True))
        for step, (x, y) in enumerate(self._read(places)):
            yield self._augment(x, step, slice(job, job + 1), 1, lengths[step]), y

    def _read(self, places: Iterable[slice | NDArray[np.int64]]) -> Iterator[tuple[Structure, Structure]]:
        """The examples at these places in `order`, on the device."""
        if self._lazy:
            for x, y in self._device_data.read((self.x, self.y), (self._host_order[place] for place in places)):
                yield as_inputs(x), y
            return
        for place in places:
            rows = self.order[place if isinstance(place, slice) else to_device(place, self.device)]
            yield as_inputs(select(self.x, rows)), select(self.y, rows)

    def _augment(self, x: Structure, step: int, own: slice, jobs: int, width: int) -> Structure:
        """The inputs [jobs * width, ...] of a step, changed at random if the task says so."""
        if self.augment is None:
            return x
        place = torch.arange(width, device=self.device)
        keys = bits(self.key(step, own, Purpose.AUGMENTATION)[:, None], place)
        keys = F.pad(keys, (0, 0, 0, jobs - len(keys)))  # rows without a job
        return self.augment(x, Random(keys.flatten()))

    def key(self, step: int, jobs: slice | int, purpose: Purpose) -> Tensor:
        """The address of the random numbers of a step, for each job."""
        return bits(self.keys[jobs], int(purpose), step)

    def step_keys(self, steps: int, purpose: Purpose) -> Tensor:
        """The addresses of all steps at once, [steps, jobs]."""
        return bits(self.keys, int(purpose), torch.arange(steps, device=self.device)[:, None])
