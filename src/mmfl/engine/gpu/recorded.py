"""The recorded way: what a cohort does over and over, taken down once and played again by the GPU without Python.

A local step is a hundred short kernels, and unless the cohort is large, to start them one by one takes longer than to
run them. A recording (a CUDA graph) always has the same number of jobs and the same batch width, so both are rounded
up: rows of jobs and examples that are not there have weight 0, and change nothing.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Jobs
from mmfl.engine.chunk import Chunk, take_off
from mmfl.engine.cohort import Cohort
from mmfl.engine.gpu.lanes import GpuLane, Lane, Play
from mmfl.local import SGD, LocalRule

T = TypeVar("T")
_LANES = 8
_MOST_EXAMPLES = 1 << 14  # in a step; more keep a GPU busy for longer than it takes to start them
_MOST_BYTES = 1 << 32  # of what a step keeps for its way back
_MOST = 64  # recordings to keep
_log = logging.getLogger("mmfl")


@dataclass(eq=False)
class Recording:
    """The tensors that a step always reads and writes, [jobs, ...] each, and how to take one."""

    weights: Tensor
    x: Tensor
    y: Tensor
    share: Tensor
    length: Tensor
    rates: Tensor
    seen: Tensor
    play: Play

    def begin(self, chunk: Chunk) -> None:
        """The jobs' weights at their start. Rows without a job keep what they had: their examples weigh nothing."""
        jobs = len(chunk.jobs)
        torch.index_select(chunk.starts, 0, chunk.which, out=self.weights[:jobs])
        self.rates[:jobs] = chunk.rates
        self.seen.zero_()

    def load(self, chunk: Chunk, step: int, active: int) -> None:
        """The batches of a step; who has none takes no part in it."""
        cells, share, length = chunk.batches.grid(step, active, (self.share.shape[0], self.share.shape[1]))
        x, y = chunk.batches.at(cells)
        given = x, y, torch.from_numpy(share), torch.from_numpy(length)
        for buffer, new in zip((self.x, self.y, self.share, self.length), given, strict=True):
            buffer.copy_(new, non_blocking=True)


class Recorder:
    """Makes recordings when they are first needed, and keeps the latest ones.

    Those of similar batch widths are played after one another, others at the same time: results are there after `join`.
    `record` makes of a step something that plays it again; tests give one that needs no GPU.
    """

    def __init__(self, record: Callable[[Play], Play] | None = None):
        self._lane: Callable[[], Lane] = partial(Lane, record) if record else GpuLane
        self._lanes = [self._lane() for _ in range(_LANES)]
        self._playing: list[Chunk] = []  # their memory is in use
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._refused: set[Architecture] = set()

    def suits(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> bool:
        """Whether a bucket is not too large, and may be padded."""
        special = type(rule) is not SGD or architecture.coupled or architecture.addressed
        return not special and self.takes(architecture, len(jobs) * int(jobs.batch.max()))

    def takes(self, architecture: Architecture, examples: int) -> bool:
        """Whether so many examples are not too many."""
        small = examples <= _MOST_EXAMPLES and examples * architecture.activation_bytes <= _MOST_BYTES
        return small and architecture not in self._refused

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was recorded under a key, made now if it is not there."""
        if key not in self._known:
            self._known[key] = make()
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        found: T = self._known[key]
        return found

    def refuse(self, architecture: Architecture, reason: str) -> None:
        """Never records this architecture again."""
        self._refused.add(architecture)
        first = reason.strip().split("\n")[0]
        _log.warning("%s cannot be recorded, so its kernels are started one by one (%s)", architecture.label, first)

    def forget(self) -> None:
        """Lets go of all recordings and their memory."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._playing.clear()
        self._known.clear()
        self._lanes = [self._lane() for _ in range(_LANES)]

    def lane(self, width: int) -> Lane:
        """Where batches of this width are played: neighbouring octaves have different lanes."""
        return self._lanes[(width - 1).bit_length() % _LANES]

    def join(self) -> None:
        """What follows comes after all that is being played."""
        for lane in self._lanes:
            lane.join()
        self._playing.clear()

    def train(self, chunk: Chunk) -> Tensor:
        """As `train_cohort`, but what it gives must not be used before `join`."""
        jobs, steps = chunk.jobs, chunk.jobs.steps
        size = _rounded(len(jobs)), _width(int(jobs.batch.max()))
        lane, whole, loaded = self.lane(size[1]), bool((jobs.batch == jobs.size).all()), 0
        self._playing.append(chunk)
        with torch.cuda.device_of(chunk.weights), lane.taken():
            recording = self.kept((chunk.architecture, *size), lambda: self._make(chunk, *size, lane))
            recording.begin(chunk)
            for step in range(int(steps[0])):
                active = int(np.searchsorted(-steps, -step))
                if not whole or active != loaded:
                    recording.load(chunk, step, active)
                    loaded = active
                recording.play()
            torch.index_select(chunk.starts, 0, chunk.which, out=chunk.weights)
            chunk.weights.sub_(recording.weights[: len(jobs)])
            return recording.seen[: len(jobs)].clone()

    def _make(self, chunk: Chunk, jobs: int, width: int, lane: Lane) -> Recording:
        x, y, share, length = chunk.batches.cohort(0, 1)
        made = Recording(
            chunk.starts[:1].repeat(jobs, 1),
            x[:, :1].repeat(jobs, width, *(1 for _ in x.shape[2:])),  # where nothing is loaded, a real example
            y[:, :1].repeat(jobs, width, *(1 for _ in y.shape[2:])),
            share.new_zeros(jobs, width),
            length.new_zeros(jobs),
            chunk.rates.new_zeros(jobs, 1),
            share.new_zeros(jobs),
            lambda: None,
        )
        cohort = Cohort(chunk.architecture, chunk.weights.device)
        pieces = chunk.architecture.layout.pieces(made.weights)

        def step() -> None:
            loss, gradients = cohort.differentiate(made.weights, (made.x,), made.y, made.share)
            for n, parts in gradients:
                take_off(parts, pieces[n][0], made.rates)
            made.seen.add_(loss * made.length)

        made.play = lane.record(step)
        chunk.architecture.bare.clear()
        return made


def _rounded(jobs: int) -> int:
    """The next half of an octave; where there are many, the next eighth.

    >>> [_rounded(n) for n in (1, 2, 3, 5, 7, 9, 13, 22, 33, 230)]
    [1, 2, 3, 6, 8, 12, 16, 24, 36, 240]
    """
    power = 1 << max(jobs - 1, 0).bit_length()
    step = max(power // (4 if power <= 32 else 16), 1)
    return -(-jobs // step) * step


def _width(batch: int) -> int:
    """The next multiple of 16."""
    return -(-batch // 16) * 16
