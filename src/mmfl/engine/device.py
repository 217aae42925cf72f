"""Which device a process computes on."""

import os

import torch

from mmfl.errors import UserError


def choose_device(device: str | torch.device | None) -> torch.device:
    """The named device, or else the one in `MMFL_DEVICE`, or else a GPU if there is one; of several processes on a
    machine, each takes a GPU of its own."""
    name = device or os.environ.get("MMFL_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    if str(name) == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}': expected cpu, cuda or cuda:N.") from None
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"unknown device '{name}': expected cpu, cuda or cuda:N.")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{name}': this machine has no CUDA device; use cpu.")
    return chosen
