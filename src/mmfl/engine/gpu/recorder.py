"""Recorder: the CUDA graphs of one engine, and the streams on which they are recorded and replayed.

A small cohort leaves most of a GPU idle; on several streams, cohorts train at the same time.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from mmfl.engine.architecture import Architecture

T = TypeVar("T")
Replay = Callable[[], None]
_STREAMS = 8
_MAX_EXAMPLES = 1 << 14  # in a step; larger ones keep a GPU busy for longer than it takes to start them
_MAX_BYTES = 1 << 32  # of activations in a step
_MAX_RECORDINGS = 64
_log = logging.getLogger("mmfl")


class Stream:
    """A CUDA stream; its graphs share one memory pool, since no two are replayed at the same time.

    `record` turns a step into a function that repeats it. With one given, nothing runs on a stream of its own.
    """

    def __init__(self, record: Callable[[Replay], Replay] | None):
        self.record = record or self._record
        self._needed = record is None
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def use(self) -> AbstractContextManager[Any]:
        """A context whose operations run on this stream, after all that was started before."""
        if not self._needed:
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """Makes what follows wait for all that was started on this stream."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _record(self, step: Replay) -> Replay:
        step()  # compiles kernels and allocates the workspaces of libraries
        try:
            graph = self._capture(step)
        except Exception:
            # Torch's random numbers stay those of a capture that failed until another one succeeds.
            device = torch.device("cuda", torch.cuda.current_device())
            self._capture(lambda: torch.zeros(1, device=device).add_(1))
            raise
        self._pool = graph.pool()
        return graph.replay

    def _capture(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that watch over several processes, may use the GPU meanwhile.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            step()
        return graph


class Recorder:
    """Makes recordings when they are first needed, and keeps those used last.

    Steps of similar batch width are replayed one after another, others at the same time: results may be used after
    `join`. `record` turns a step into a function that repeats it; tests pass one that needs no GPU. One that is not
    `enabled` finds no step worth recording.
    """

    def __init__(self, record: Callable[[Replay], Replay] | None = None, enabled: bool = True):
        self._record, self._enabled = record, enabled
        self._streams = [Stream(record) for _ in range(_STREAMS)]
        self._in_use: list[object] = []
        self._recordings: OrderedDict[Hashable, Any] = OrderedDict()
        self._disabled: set[Architecture] = set()

    def fits(self, architecture: Architecture, examples: int) -> bool:
        """Whether a step over this many examples is small enough to be worth recording."""
        small = examples <= _MAX_EXAMPLES and examples * architecture.activation_bytes <= _MAX_BYTES
        return self._enabled and small and architecture not in self._disabled

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The recording under a key, made now if there is none."""
        if key not in self._recordings:
            self._recordings[key] = make()
            if len(self._recordings) > _MAX_RECORDINGS:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        found: T = self._recordings[key]
        return found

    def disable(self, architecture: Architecture, reason: str) -> None:
        """Never records this architecture again."""
        self._disabled.add(architecture)
        _log.warning("%s cannot be recorded, so its kernels are started one by one (%s)", architecture.label, reason)

    def clear(self) -> None:
        """Releases all recordings and their memory."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._in_use.clear()
        self._recordings.clear()
        self._streams = [Stream(self._record) for _ in range(_STREAMS)]

    def stream(self, width: int) -> Stream:
        """The stream for batches of this width: one for each power of two."""
        return self._streams[(width - 1).bit_length() % _STREAMS]

    def hold(self, tensors: object) -> None:
        """Keeps what a stream uses alive until `join`."""
        self._in_use.append(tensors)

    def join(self) -> None:
        """Makes what follows wait for everything that is being replayed."""
        for stream in self._streams:
            stream.join()
        self._in_use.clear()
