"""The processes that work on runs: whether one is alive, and the `torchrun` job that this one belongs to."""

import os
import socket
from pathlib import Path


def is_alive(pid: int, birth: str) -> bool:
    """Whether the process of this number that began at `birth` still runs, on this machine."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    return start_time(pid) == birth


def start_time(pid: int) -> str:
    """When a process began, in ticks since the machine did; empty where the system does not say, or it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""


def torchrun_job() -> str:
    """Names the `torchrun` job of this process, alike before and after `torchrun` restarts it; empty without one.

    That is the id of the job's rendezvous. Where it has none, `torchrun` itself is named, the parent of this process,
    by machine, number and start.
    """
    job = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if job != "none":
        return job
    parent = os.getppid()
    return f"{socket.gethostname()} {parent} {start_time(parent)}"


def torchrun_restarts_left() -> int:
    """How often `torchrun` will start the processes of this job again if one is lost."""
    most, used = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return int(most) - int(used) if most.isdecimal() and used.isdecimal() else 0
