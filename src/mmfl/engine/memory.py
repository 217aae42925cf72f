"""How many jobs fit at once, and what to do when they did not."""

import sys

import numpy as np
import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture

_CPU_BYTES = 1 << 30
_FORWARD_BYTES = {"cpu": 1 << 26, "cuda": 1 << 32}
_FORWARD_EXAMPLES = {"cpu": 1 << 14}  # more leave a core's cache, whatever the network
_COPIES = 6  # of the weights: start, current, gradient by layer and flat, step, answer


class Chunks:
    """Sizes of chunks by architecture and batch width: estimated at first, halved where memory runs out."""

    def __init__(self, device: torch.device):
        self.device = device
        self._limits: dict[tuple[Architecture, int], int] = {}
        self._room = 0

    def size(self, architecture: Architecture, width: int, jobs: int) -> int:
        """Of so many jobs, those that may train at once. A GPU is asked for its room only where it might be short."""
        job = 4 * _COPIES * architecture.length + 3 * width * architecture.activation_bytes
        if jobs * job > self._room // 8:
            self._room = self._available()
        fits = max(1, self._room // job)
        return min(fits, self._limits.get((architecture, width), fits))

    def halve(self, architecture: Architecture, width: int, failed: int) -> None:
        """Remembers that this many jobs did not fit."""
        self._limits[architecture, width] = max(1, failed // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _available(self) -> int:
        if self.device.type != "cuda":
            return _CPU_BYTES
        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(0.8 * (free + cached))


class Space:
    """Room for matrices of updates. On a CPU it is used again as soon as nobody holds a tensor over it, because fresh
    memory is zeroed by the system page by page, which takes longer than a local step; a GPU's allocator does the same.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._spare = np.empty(0, dtype=np.float32)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """An uninitialised float matrix."""
        if self.device.type != "cpu":
            return torch.empty(rows, columns, device=self.device)
        held = sys.getrefcount(self._spare) > 2
        if held or not rows * columns <= self._spare.size <= 4 * rows * columns:
            # numpy, unlike torch, asks for huge pages
            self._spare = np.empty(rows * columns, dtype=np.float32)
        return torch.from_numpy(self._spare[: rows * columns].reshape(rows, columns))


def room_for_updates(device: torch.device) -> int:
    """Bytes of updates to return at once: an eighth of a GPU's memory, half a gigabyte of a computer's."""
    if device.type != "cuda":
        return _CPU_BYTES // 2
    return int(torch.cuda.get_device_properties(device).total_memory // 8)


def forward_chunk(architecture: Architecture, device: torch.device) -> int:
    """Examples to pass forward at once."""
    fits = _FORWARD_BYTES.get(device.type, 1 << 26) // max(1, architecture.activation_bytes)
    return max(1, min(fits, _FORWARD_EXAMPLES.get(device.type, fits)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or in torch's CPU allocator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
