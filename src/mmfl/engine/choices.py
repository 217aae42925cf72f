"""Choices: whether vectorised or sequential training measured faster, remembered so that it is measured once."""

import hashlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from mmfl.data.files import cache_folder

_CPUINFO = Path("/proc/cpuinfo")
_IDENTITY = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # lines of a processor, Intel's or ARM's


class Choices:
    """Decisions by architecture, stored by kind of processor in the user's cache folder, which machines may share.

    Timings differ from run to run, but decisions must not, or a run and its resumption would differ in their last bits.
    So the first decision stands, and checkpoints contain the decisions of their run.
    """

    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        machine = f"torch{torch.__version__}-{torch.get_num_threads()}threads-{_processor()}"
        self._file = cache_folder() / f"engine-{machine}.json"

    def choose(self, key: str, measure: Callable[[], dict[str, float]]) -> str:
        """The way decided on under a key: the faster one, if there is no decision yet, by the seconds of each."""
        if key not in self.made:
            stored = self._read()
            self.made[key] = stored[key] if key in stored else self._decide(key, measure())
        return self.made[key]

    def _decide(self, key: str, seconds: dict[str, float]) -> str:
        way = min(seconds, key=lambda way: seconds[way])
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({**self._read(), key: way}, indent=1))
            draft.replace(self._file)
        except OSError:
            pass  # a read-only home: the next process measures again
        return way

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        ways = ("vectorised", "sequential")
        return {k: v for k, v in found.items() if v in ways} if isinstance(found, dict) else {}


def _processor() -> str:
    """A hash of the processor and of the instructions that torch uses on it."""
    about = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    about.append(os.environ.get("ONEDNN_MAX_CPU_ISA", ""))
    try:
        first, _, _ = _CPUINFO.read_text().partition("\n\n")  # the first processor only
    except OSError:  # not Linux
        first = ""
    about += [line for line in first.splitlines() if line.startswith(_IDENTITY)]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
