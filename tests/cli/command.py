"""The command in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = "from mmfl.cli import main; main()"
UNDECIDED = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TERM")}


def mmfl(*arguments: str, cwd: Path, program: str = PROGRAM, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env={**UNDECIDED, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
