"""Which way of training measured faster, kept so that it is measured once and a resumed run goes the same way."""

import hashlib
import json
import os
import platform
from pathlib import Path

import torch

from mmfl.data.files import cache_folder

_CPUINFO = Path("/proc/cpuinfo")
_IDENTITY = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # lines of a processor, Intel's or ARM's


class Choices:
    """Decisions by architecture, remembered per processor in the user's cache folder, which machines may share.

    Timings differ from run to run; the decision must not, or a run and its resumption would differ in their last
    bits. So the first decision stands, and a checkpoint carries those it was made with.
    """

    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        machine = f"torch{torch.__version__}-{torch.get_num_threads()}threads-{_processor()}"
        self._file = cache_folder() / f"engine-{machine}.json"

    def __contains__(self, key: str) -> bool:
        if key not in self.made:
            remembered = self._remembered()
            if key in remembered:
                self.made[key] = remembered[key]
        return key in self.made

    def __getitem__(self, key: str) -> str:
        return self.made[key]

    def decide(self, key: str, seconds: dict[str, float]) -> None:
        """Takes the faster way from now on."""
        self.made[key] = min(seconds, key=lambda way: seconds[way])
        remembered = {**self._remembered(), key: self.made[key]}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(remembered, indent=1))
            draft.replace(self._file)
        except OSError:
            pass  # a read-only home: decide anew in the next process

    def _remembered(self) -> dict[str, str]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        ways = ("vectorised", "sequential")
        return {k: v for k, v in found.items() if v in ways} if isinstance(found, dict) else {}


def _processor() -> str:
    """A short code of what decides how fast this machine is: the processor, and the instructions used on it."""
    about = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    about.append(os.environ.get("ONEDNN_MAX_CPU_ISA", ""))
    try:
        first, _, _ = _CPUINFO.read_text().partition("\n\n")  # of several processors
    except OSError:  # not Linux
        first = ""
    about += [line for line in first.splitlines() if line.startswith(_IDENTITY)]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
