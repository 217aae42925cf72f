"""Batches: which examples each job sees at each local step."""

from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.dataset import as_inputs
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
    otherwise the jobs' examples, gathered once. `order` holds rows of them in the order of use, job after job and epoch
    after epoch; those of job j begin at `first[j]`.
    """

    def __init__(self, jobs: Jobs, device_data: DeviceData):
        self.device, self.jobs = device_data.device, jobs
        self.per_epoch = -(-jobs.size // jobs.batch)
        rows = self._find_rows(jobs, device_data)
        self.first, self.order = self._shuffle(jobs, rows)

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

    def cohort(self, step: int, active: int, keys: bool = False) -> CohortBatch:
        """The batches of the first `active` jobs at a step, with the keys of their random numbers if asked for."""
        positions, share, length = self.padded(step, active)
        key = self.key(step, slice(0, active)) if keys else None
        x, y = self.gather(positions)
        return CohortBatch(x, y, to_device(share, self.device), to_device(length, self.device), key)

    def padded(
        self, step: int, active: int, shape: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """The batches of the first `active` jobs at a step, padded to the widest or to a larger shape [jobs, width].

        Returns positions of the examples in `order` [jobs, width], their weights [jobs, width] and the batch sizes
        [jobs]. The weights of a row sum to 1; padding has weight 0, and so have all rows without a job.
        """
        begins, lengths = self.position(step, slice(0, active))
        jobs, width = shape or (active, int(lengths.max()))
        begin, length = np.zeros((2, jobs), dtype=np.int64)
        begin[:active], length[:active] = begins, lengths
        column, count = np.arange(width), np.maximum(length, 1)[:, None]
        positions = begin[:, None] + np.minimum(column, count - 1)
        return positions, ((column < length[:, None]) / count).astype(np.float32), length

    def gather(self, positions: NDArray[np.int64]) -> tuple[Structure, Structure]:
        """Inputs and targets [jobs, width, ...] at these positions in `order`."""
        rows = self.order[to_device(positions.reshape(-1), self.device)]
        x, y = as_inputs(select(self.x, rows)), select(self.y, rows)
        unflatten = partial(torch.unflatten, dim=0, sizes=positions.shape)
        return map_leaves(unflatten, x), map_leaves(unflatten, y)

    def examples(self, begin: int, length: int) -> tuple[Structure, Structure]:
        """Inputs and targets of one batch."""
        rows = self.order[begin : begin + length]
        return as_inputs(select(self.x, rows)), select(self.y, rows)

    def key(self, step: int, jobs: slice | int) -> Tensor:
        """The address of the random numbers of a step, for each job."""
        return bits(self.keys[jobs], int(Purpose.DROPOUT), step)
