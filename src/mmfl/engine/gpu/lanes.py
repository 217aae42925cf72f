"""Lanes: streams of a GPU, on which recordings are played beside one another.

A small cohort leaves most of a GPU idle, so that others may train at the same time.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Play = Callable[[], None]


class Lane:
    """Where recordings are made, and played one after another. This one needs no GPU, and is as good as none."""

    def __init__(self, record: Callable[[Play], Play]):
        self.record = record

    def taken(self) -> AbstractContextManager[Any]:
        """Within it all is done on this lane, after what was begun before."""
        return nullcontext()

    def join(self) -> None:
        """What follows comes after all that was done on this lane."""


class GpuLane(Lane):
    """A stream of its own; its recordings (CUDA graphs) share one pool of memory, since no two are played at once."""

    def __init__(self) -> None:
        super().__init__(self._record)
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def taken(self) -> AbstractContextManager[Any]:
        """Within it the lane's stream is the current one."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """The current stream waits for the lane's."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _record(self, step: Play) -> Play:
        step()  # kernels are compiled and libraries find their workspace
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that watch over several processes, may use the GPU meanwhile.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            step()
        self._pool = graph.pool()
        return graph.replay
