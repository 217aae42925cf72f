"""Streams, on which CUDA graphs are recorded and replayed.

A small cohort leaves most of a GPU idle; on several streams, cohorts train at the same time.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Replay = Callable[[], None]


class Stream:
    """Does nothing: used where there is no GPU. `record` turns a step into a function that repeats it."""

    def __init__(self, record: Callable[[Replay], Replay]):
        self.record = record

    def use(self) -> AbstractContextManager[Any]:
        """A context whose operations run on this stream, after all that was started before."""
        return nullcontext()

    def join(self) -> None:
        """Makes what follows wait for all that was started on this stream."""


class CudaStream(Stream):
    """A CUDA stream; its graphs share one memory pool, since no two are replayed at the same time."""

    def __init__(self) -> None:
        super().__init__(self._record)
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def use(self) -> AbstractContextManager[Any]:
        """A context in which this is the current stream."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """Makes the current stream wait for this one."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _record(self, step: Replay) -> Replay:
        step()  # compiles kernels and allocates the workspaces of libraries
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that watch over several processes, may use the GPU meanwhile.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            step()
        self._pool = graph.pool()
        return graph.replay
