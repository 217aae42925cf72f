"""The device that a process computes on, and what fits into its memory."""

import os
import sys

import numpy as np
import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.errors import UserError

_CPU_BYTES = 1 << 30
_FORWARD_BYTES = {"cpu": 1 << 26, "cuda": 1 << 32}
_CPU_FORWARD_EXAMPLES = 1 << 14  # more do not fit into a core's cache
_WEIGHT_COPIES = 6  # start, current, gradient by layer and flat, step, answer


def choose_device(device: str | torch.device | None) -> torch.device:
    """The named device, or else the one in `MMFL_DEVICE`, or else a GPU if there is one; of several processes on a
    machine, each takes a GPU of its own."""
    name = device or os.environ.get("MMFL_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    if str(name) == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        chosen = torch.device(name)
        known = chosen.type in ("cpu", "cuda")
    except RuntimeError:
        known = False
    if not known:
        raise UserError(f"unknown device '{name}': expected cpu, cuda or cuda:N.")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{name}': this machine has no CUDA device; use cpu.")
    return chosen


class CohortSizes:
    """The largest cohort by architecture and batch width: estimated at first, halved where memory runs out."""

    def __init__(self, device: torch.device):
        self.device = device
        self._limits: dict[tuple[Architecture, int], int] = {}
        self._free_bytes = 0

    def size(self, architecture: Architecture, width: int, jobs: int) -> int:
        """How many of these jobs may train at once. The free memory is read again only where it may be short."""
        job_bytes = 4 * _WEIGHT_COPIES * architecture.length + 3 * width * architecture.activation_bytes
        if jobs * job_bytes > self._free_bytes // 8:
            self._free_bytes = self._read_free_bytes()
        fits = max(1, self._free_bytes // job_bytes)
        return min(fits, self._limits.get((architecture, width), fits))

    def halve(self, architecture: Architecture, width: int, failed: int) -> None:
        """Limits cohorts to half of the size that did not fit."""
        self._limits[architecture, width] = max(1, failed // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _read_free_bytes(self) -> int:
        if self.device.type != "cuda":
            return _CPU_BYTES
        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(0.8 * (free + cached))


class UpdateBuffer:
    """Memory for matrices of updates.

    On a CPU it is reused as soon as no tensor refers to it, because the system zeroes fresh memory page by page, which
    takes longer than a local step. On a GPU torch's allocator does the same.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._memory = np.empty(0, dtype=np.float32)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """An uninitialised float matrix."""
        if self.device.type != "cpu":
            return torch.empty(rows, columns, device=self.device)
        in_use = sys.getrefcount(self._memory) > 2
        if in_use or not rows * columns <= self._memory.size <= 4 * rows * columns:
            # numpy, unlike torch, asks for huge pages
            self._memory = np.empty(rows * columns, dtype=np.float32)
        return torch.from_numpy(self._memory[: rows * columns].reshape(rows, columns))


def max_update_bytes(device: torch.device) -> int:
    """Bytes of updates to return at once: an eighth of a GPU's memory, or half a gigabyte on a CPU."""
    if device.type != "cuda":
        return _CPU_BYTES // 2
    return int(torch.cuda.get_device_properties(device).total_memory // 8)


def forward_batch_size(architecture: Architecture, device: torch.device) -> int:
    """Examples in one forward pass without gradients."""
    fits = max(1, _FORWARD_BYTES[device.type] // architecture.activation_bytes)
    return min(fits, _CPU_FORWARD_EXAMPLES) if device.type == "cpu" else fits


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or in torch's CPU allocator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)
