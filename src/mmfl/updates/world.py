"""World: the processes that share a run. Each works for its own clients; what all must know is summed over them."""

import os
import signal
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from mmfl.errors import LostProcessError, first_line
from mmfl.updates.meeting import start_group

PARTIAL = {"partial": True}
"""Metadata of a dataclass field that is a sum over clients: each process holds the part of its own ones."""

_PATIENCE = timedelta(hours=2)  # for a process that has far more to do than the others


class World:
    """A process alone: all clients are its own, and every sum is complete.

    >>> World().owns(np.array([3, 4, 8])).tolist()
    [True, True, True]
    """

    rank: int = 0
    size: int = 1

    def owns(self, client: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these clients this process works for."""
        owns: NDArray[np.bool_] = client % self.size == self.rank
        return owns

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, the same bits on each. The tensor given may be overwritten."""
        return tensor

    def sums(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """As `sum`, of a numpy array."""
        return array

    def broadcast(self, text: str) -> str:
        """The value of the first process, sent to all of them."""
        return text

    def wait(self) -> None:
        """Waits until every process is here."""

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.sums(np.array([float(flag)]))[0])

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return self.rank == 0


SINGLE_PROCESS = World()
"""The world of a run in one process."""


class TorchrunWorld(World):
    """The processes of a `torch.distributed` group: clients belong to them by number, in turn.

    Sums travel over gloo on CPUs and NCCL on GPUs. Every process must ask for the same sums in the same order.
    """

    def __init__(self, device: torch.device):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = device

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce in place."""
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            raise LostProcessError(f"a process of this run was lost ({first_line(error)[:200]}).") from None
        return tensor

    def sums(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """All-reduce of a copy on the group's device."""
        summed: NDArray[np.float64] = self.sum(torch.from_numpy(array.copy()).to(self.device)).cpu().numpy()
        return summed

    def broadcast(self, text: str) -> str:
        """A broadcast, as bytes."""
        letters = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.float64) if self.first else np.zeros(0)
        length = int(self.sums(np.array([float(len(letters))]))[0])
        letters = self.sums(letters if self.first else np.zeros(length))
        return letters.astype(np.uint8).tobytes().decode()

    def wait(self) -> None:
        """A sum of nothing."""
        self.sums(np.zeros(1))


def join(device: torch.device) -> World:
    """The group of processes that `torchrun` started, joined once; `SINGLE_PROCESS` without `torchrun`.

    A process that is told to end, because another one was lost, says so.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        return SINGLE_PROCESS
    if not dist.is_initialized():
        start_group("nccl" if device.type == "cuda" else "gloo", _PATIENCE)
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _ended)
    return TorchrunWorld(device)


def leave() -> None:
    """Leaves the group."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _ended(*_: Any) -> NoReturn:
    raise LostProcessError("this process was told to end, as happens when another one of the run was lost.")
