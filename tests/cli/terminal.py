"""A pseudo-terminal: what a program writes to it, and what it answers to keys."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType

UNDECIDED = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x1b\][^\x07]*\x07|[\x00\x07\r]")
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7]|4[0-8]|10[0-7])(?:;\d+)*m")


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *command: str, cwd: Path, env: dict[str, str] | None = None):
        self.end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(other)
        self.shown = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.end)

    def type(self, keys: str) -> None:
        os.write(self.end, keys.encode())

    def wait_for(self, text: str, seconds: float = 30) -> str:
        """What is shown from now on, without controls, until it holds the text."""
        self.shown, until = "", time.monotonic() + seconds
        while text not in CONTROLS.sub("", self.shown):
            assert time.monotonic() < until, f"no {text!r} in {CONTROLS.sub('', self.shown)!r}"
            self._read(0.1)
        return CONTROLS.sub("", self.shown)

    def finish(self, seconds: float = 60) -> str:
        """All that is shown until the process ends."""
        until = time.monotonic() + seconds
        while self._read(0.1) or self.process.poll() is None:
            assert time.monotonic() < until, self.shown
        return self.shown

    def _read(self, seconds: float) -> bool:
        if select.select([self.end], [], [], seconds)[0]:
            try:
                self.shown += os.read(self.end, 65536).decode(errors="replace")
            except OSError:  # nobody holds the other end any more
                return False
            return True
        return False
