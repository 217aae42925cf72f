"""Recorder: the CUDA graphs of one engine, and the streams on which they are replayed."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch

from mmfl.engine.architecture import Architecture
from mmfl.engine.gpu.streams import CudaStream, Replay, Stream

T = TypeVar("T")
_STREAMS = 8
_MAX_EXAMPLES = 1 << 14  # in a step; larger ones keep a GPU busy for longer than it takes to start them
_MAX_BYTES = 1 << 32  # of activations in a step
_MAX_RECORDINGS = 64
_log = logging.getLogger("mmfl")


class Recorder:
    """Makes recordings when they are first needed, and keeps those used last.

    Steps of similar batch width are replayed one after another, others at the same time: results may be used after
    `join`. `record` turns a step into a function that repeats it; tests pass one that needs no GPU.
    """

    def __init__(self, record: Callable[[Replay], Replay] | None = None):
        self._new_stream: Callable[[], Stream] = partial(Stream, record) if record else CudaStream
        self._streams = [self._new_stream() for _ in range(_STREAMS)]
        self._in_use: list[object] = []
        self._recordings: OrderedDict[Hashable, Any] = OrderedDict()
        self._disabled: set[Architecture] = set()

    def fits(self, architecture: Architecture, examples: int) -> bool:
        """Whether a step over this many examples is small enough to be worth recording."""
        small = examples <= _MAX_EXAMPLES and examples * architecture.activation_bytes <= _MAX_BYTES
        return small and architecture not in self._disabled

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
        first = reason.strip().split("\n")[0]
        _log.warning("%s cannot be recorded, so its kernels are started one by one (%s)", architecture.label, first)

    def clear(self) -> None:
        """Releases all recordings and their memory."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._in_use.clear()
        self._recordings.clear()
        self._streams = [self._new_stream() for _ in range(_STREAMS)]

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
