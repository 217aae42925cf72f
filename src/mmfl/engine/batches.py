"""Batches: which examples each job sees at each local step."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.dataset import as_inputs
from mmfl.engine.device_data import DeviceData
from mmfl.engine.jobs import Jobs
from mmfl.randomness import Purpose, bits
from mmfl.tensors import to_device


class CohortBatch(NamedTuple):
    """One mini-batch of each job of a cohort.

    Inputs and targets [jobs, width, ...], the weight of each example in its job's mean loss [jobs, width], batch sizes
    [jobs], and the address of each job's random numbers at this step, where the module draws any.
    """

    x: Tensor
    y: Tensor
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
        self.device = device_data.device
        self.size, self.batch = jobs.size, jobs.batch
        self.per_epoch = -(-jobs.size // jobs.batch)
        self.jobs = jobs
        rows = self._find_rows(jobs, device_data)
        self.first, self.order = self._shuffle(jobs, rows)

    def _find_rows(self, jobs: Jobs, device_data: DeviceData) -> Tensor:
        """Sets `x` and `y`, and returns the rows of each job's examples, job after job."""
        sources = [(t.federation, t.task) for t in jobs.trainings]
        datasets = [federation.tasks[task].data for federation, task in sources]
        used = np.flatnonzero(np.bincount(jobs.request)).tolist()
        shards = [federation.shards[task] for federation, task in sources]
        start = np.empty(len(jobs), dtype=np.int64)
        for r in used:
            of_request = jobs.request == r
            start[of_request] = shards[r].offset[jobs.trainings[r].client[jobs.row[of_request]]]
        total = np.cumsum(jobs.size)
        local = np.arange(total[-1]) - np.repeat(total - jobs.size, jobs.size)
        position = np.repeat(start, jobs.size) + local
        rows = np.empty(total[-1], dtype=np.int64)
        source = np.repeat(jobs.request, jobs.size)
        for r in used:
            rows[source == r] = shards[r].index[position[source == r]]
        pool = device_data.pool(datasets)
        if pool:
            self.x, self.y = pool.x, pool.y
            return to_device(rows + np.array([pool.first_row[each] for each in datasets])[source], self.device)
        order, xs, ys = [], [], []
        for r in used:
            of_request = np.flatnonzero(source == r)
            picked = to_device(rows[of_request], self.device)
            order.append(of_request)
            xs.append(device_data(datasets[r].x).index_select(0, picked))
            ys.append(device_data(datasets[r].y).index_select(0, picked))
        self.x, self.y = torch.cat(xs), torch.cat(ys)
        place = np.empty(len(rows), dtype=np.int64)
        place[np.concatenate(order)] = np.arange(len(rows))
        return to_device(place, self.device)

    def _shuffle(self, jobs: Jobs, rows: Tensor) -> tuple[NDArray[np.int64], Tensor]:
        """Computes `first` and `order`.

        Each (job, epoch) is a segment; one sort by (segment, random bits) shuffles all segments.
        """
        epochs = np.where(jobs.batch < jobs.size, jobs.epochs, 1)
        used = jobs.size * epochs
        first = np.cumsum(used) - used
        if (epochs == 1).all() and (jobs.batch == jobs.size).all():
            return first, rows
        job = np.repeat(np.arange(len(jobs)), epochs)
        epoch = np.arange(len(job)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
        length = jobs.size[job]
        begin, end = torch.from_numpy(np.cumsum(jobs.size)[job] - length), torch.from_numpy(np.cumsum(length))
        key = bits(jobs.key[torch.from_numpy(job)], int(Purpose.BATCHES), torch.from_numpy(epoch))
        whole = torch.from_numpy(jobs.batch[job] == length)
        columns = torch.stack([begin, end - torch.from_numpy(length), key, whole.long()]).to(
            self.device, non_blocking=True
        )
        segment = torch.arange(len(job), device=self.device).repeat_interleave(
            to_device(length, self.device), output_size=int(length.sum())
        )
        begin, before, key, whole = columns[:, segment]
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
        size, batch = self.size[jobs], self.batch[jobs]
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

    def gather(self, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets [jobs, width, ...] at these positions in `order`."""
        rows = self.order[to_device(positions.reshape(-1), self.device)]
        x, y = as_inputs(self.x.index_select(0, rows)), self.y.index_select(0, rows)
        return x.unflatten(0, positions.shape), y.unflatten(0, positions.shape)

    def examples(self, begin: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one batch."""
        rows = self.order[begin : begin + length]
        return as_inputs(self.x.index_select(0, rows)), self.y.index_select(0, rows)

    def key(self, step: int, jobs: slice | int) -> Tensor:
        """The address of the random numbers of a step, for each job."""
        return bits(self.keys[jobs], int(Purpose.DROPOUT), step)
