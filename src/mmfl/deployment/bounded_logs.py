"""Bounds the log files of processes that write to them for weeks."""

import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from mmfl.runs.files import previous

MAX_LOG_BYTES = 50 << 20
_SECONDS_BETWEEN_LOOKS = 30.0


class BoundedLogs:
    """While active, looks now and then whether a log in a folder is too large: what it holds then moves to a second
    file, `.1`, in place of what was there. The process goes on writing at the beginning of its file."""

    def __init__(self, folder: Path, most: int = MAX_LOG_BYTES, seconds: float = _SECONDS_BETWEEN_LOOKS):
        self.folder, self.most, self.seconds = folder, most, seconds
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look_repeatedly, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _look_repeatedly(self) -> None:
        while not self.ended.wait(self.seconds):
            with suppress(OSError):
                self.look()

    def look(self) -> None:
        """Moves what is too large. A line that is written meanwhile may be lost."""
        for path in self.folder.glob("*.log"):
            if path.stat().st_size > self.most:
                shutil.copyfile(path, previous(path))
                with path.open("r+b") as file:
                    file.truncate()
