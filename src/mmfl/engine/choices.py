"""Which way of training measured faster, kept so that it is measured once and a resumed run goes the same way."""

import json
import os

import torch

from mmfl.data.files import cache_folder


class Choices:
    """Decisions by architecture, remembered per machine in the user's cache folder.

    Timings differ from run to run; the decision must not, or a run and its resumption would differ in their last
    bits. So the first decision stands, and a checkpoint carries those it was made with.
    """

    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        self._file = cache_folder() / f"engine-torch{torch.__version__}-{torch.get_num_threads()}threads.json"

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
