"""Jobs and their mini-batches: which rows of which data each client sees at each local step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.dataset import as_inputs
from mmfl.engine.base import Training
from mmfl.engine.placed import Placed
from mmfl.randomness import Purpose, bits
from mmfl.tensors import to_device

_ENOUGH = 1 << 14  # examples in a step that keep a device busy
_FINEST = 8  # parts of an octave


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
        """The address of each job's random numbers, for those that need any."""
        keys = torch.empty(len(self), dtype=torch.int64)
        for r in np.unique(self.request):
            training, mine = self.trainings[r], np.flatnonzero(self.request == r)
            client = torch.from_numpy(training.client[self.row[mine]])
            keys[torch.from_numpy(mine)] = bits(training.seed, training.round, training.task, client)
        return keys

    @property
    def steps(self) -> NDArray[np.int64]:
        """Local steps of each job: the last, smaller batch of an epoch is kept."""
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
        """Jobs of similar batch size together, most steps first, so that little is padded and nothing computed twice.

        The largest batches come first: where buckets train side by side, the others do so meanwhile.
        With `exact`, only jobs with the same batches at every step share a bucket: then nothing is padded.
        """
        kind = -(self.size * (1 << 32) + self.batch) if exact else _kinds(self.batch)
        steps = self.steps
        order = np.lexsort((-steps, kind))
        bounds = np.flatnonzero(np.diff(kind[order])) + 1
        return [self.take(part) for part in np.split(order, bounds)]

    def learning_rates(self) -> NDArray[np.float32]:
        """The local step size of each job."""
        rates = [t.federation.tasks[t.task].learning_rate(t.round) for t in self.trainings]
        return np.asarray(rates, dtype=np.float32)[self.request]

    def starts(self) -> tuple[Tensor, NDArray[np.int64]]:
        """Distinct starting weights [starts, parameters], and which of them each job has."""
        there = np.bincount(self.request, minlength=len(self.trainings)) > 0
        used = np.flatnonzero(there).tolist()
        return torch.stack([self.trainings[r].weights for r in used]), (np.cumsum(there) - 1)[self.request]

    def corrections(self) -> Tensor | None:
        """What is added to every gradient of each job, [jobs, parameters]; None where nothing is."""
        given = [t.correction for t in self.trainings]
        if all(correction is None for correction in given):
            return None
        length = len(self.trainings[0].weights)
        rows = self.trainings[0].weights.new_zeros(len(self), length)
        for r in np.unique(self.request):
            correction = given[r]
            if correction is not None:
                mine = to_device(np.flatnonzero(self.request == r), rows.device)
                rows[mine] = correction[to_device(self.row[self.request == r], correction.device)]
        return rows


def _kinds(batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which batch sizes are similar enough to be padded to one another, numbered from the largest: those over half of
    the largest, then those over half of the largest of the others, and so on; more than half where there is so much
    work that every part alone fills a device.

    >>> _kinds(np.array([9, 40, 15, 12]))
    array([1, 0, 1, 1])
    >>> np.unique(_kinds(np.repeat([9, 12, 15], 5000)))
    array([0, 1, 2])
    """
    kinds, left, number = np.empty(len(batch), dtype=np.int64), np.ones(len(batch), dtype=bool), 0
    while left.any():
        largest = batch[left].max()
        work = batch[left & (2 * batch > largest)].sum()
        parts = min(2 ** int(np.log2(max(work / _ENOUGH, 1))), _FINEST)
        near = left & (batch > largest * 2 ** (-1 / parts))
        kinds[near] = number
        left &= ~near
        number += 1
    return kinds


class Batches:
    """The mini-batches of all jobs of a bucket: without replacement, in an order addressed by job and epoch.

    A job's full batch keeps the order of its data. `x` and `y` are the pool of all examples where there is one,
    otherwise the jobs' examples gathered once.
    """

    def __init__(self, jobs: Jobs, placed: Placed):
        self.device = placed.device
        self.size, self.batch, self.steps = jobs.size, jobs.batch, jobs.steps
        self.per_epoch = -(-jobs.size // jobs.batch)
        self.jobs = jobs
        rows = self._rows(jobs, placed)
        self.first, self.order = self._shuffled(jobs, rows)

    def _rows(self, jobs: Jobs, placed: Placed) -> Tensor:
        """Sets the pool of examples and returns the pool rows of job after job."""
        sources = [(t.federation, t.task) for t in jobs.trainings]
        data = [federation.tasks[task].data for federation, task in sources]
        used = np.flatnonzero(np.bincount(jobs.request)).tolist()
        shards = [federation.shards[task] for federation, task in sources]
        start = np.empty(len(jobs), dtype=np.int64)
        for r in used:
            mine = jobs.request == r
            start[mine] = shards[r].offset[jobs.trainings[r].client[jobs.row[mine]]]
        total = np.cumsum(jobs.size)
        local = np.arange(total[-1]) - np.repeat(total - jobs.size, jobs.size)
        position = np.repeat(start, jobs.size) + local
        rows = np.empty(total[-1], dtype=np.int64)
        source = np.repeat(jobs.request, jobs.size)
        for r in used:
            rows[source == r] = shards[r].index[position[source == r]]
        pool = placed.pool(data)
        if pool:
            self.x, self.y = pool.x, pool.y
            return to_device(rows + np.array([pool.begins[each] for each in data])[source], self.device)
        order, xs, ys = [], [], []
        for r in used:
            mine = np.flatnonzero(source == r)
            picked = to_device(rows[mine], self.device)
            order.append(mine)
            xs.append(placed(data[r].x).index_select(0, picked))
            ys.append(placed(data[r].y).index_select(0, picked))
        self.x, self.y = torch.cat(xs), torch.cat(ys)
        place = np.empty(len(rows), dtype=np.int64)
        place[np.concatenate(order)] = np.arange(len(rows))
        return to_device(place, self.device)

    def _shuffled(self, jobs: Jobs, rows: Tensor) -> tuple[NDArray[np.int64], Tensor]:
        """Pool rows in the order of use, epoch after epoch of job after job, and where each job begins.

        Each (job, epoch) is a segment; sorting by (segment, random bits) shuffles all segments in one go.
        """
        passes = np.where(jobs.batch < jobs.size, jobs.epochs, 1)
        used = jobs.size * passes
        first = np.cumsum(used) - used
        if (passes == 1).all() and (jobs.batch == jobs.size).all():
            return first, rows
        job = np.repeat(np.arange(len(jobs)), passes)
        epoch = np.arange(len(job)) - np.repeat(np.cumsum(passes) - passes, passes)
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
        """Where in `order` the batches of this step (or of these steps of one job) begin, and how long they are."""
        size, batch = self.size[jobs], self.batch[jobs]
        epoch, within = np.divmod(step, self.per_epoch[jobs])
        within = within * batch
        return self.first[jobs] + np.where(batch < size, epoch * size, 0) + within, np.minimum(batch, size - within)

    def cohort(self, step: int, active: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs and targets [active, width, ...] of the first `active` jobs at a step, their weights, batch sizes."""
        cells, share, length = self.grid(step, active)
        return (*self.at(cells), to_device(share, self.device), to_device(length, self.device))

    def grid(
        self, step: int, active: int, shape: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """Of a step of the first `active` jobs: where in `order` their examples are and what they weigh, [jobs, width],
        and the batch sizes [jobs]; as large as is needed, or of a shape that is larger.

        Weights sum to 1 in each row; rows shorter than the widest are filled up with weight 0, and so are rows without
        a job.
        """
        place = self.position(step, slice(0, active))
        jobs, width = shape or (active, int(place[1].max()))
        begin, length = np.zeros((2, jobs), dtype=np.int64)
        begin[:active], length[:active] = place
        within, most = np.arange(width), np.maximum(length, 1)[:, None]
        cells = begin[:, None] + np.minimum(within, most - 1)
        return cells, ((within < length[:, None]) / most).astype(np.float32), length

    def at(self, cells: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets [jobs, width, ...] at these places in `order`."""
        rows = self.order[to_device(cells.reshape(-1), self.device)]
        x, y = as_inputs(self.x.index_select(0, rows)), self.y.index_select(0, rows)
        return x.unflatten(0, cells.shape), y.unflatten(0, cells.shape)

    def examples(self, begin: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one batch."""
        rows = self.order[begin : begin + length]
        return as_inputs(self.x.index_select(0, rows)), self.y.index_select(0, rows)

    def key(self, step: int, jobs: slice | int) -> Tensor:
        """Address of the random numbers of a step, for each job."""
        return bits(self.keys[jobs], int(Purpose.DROPOUT), step)
