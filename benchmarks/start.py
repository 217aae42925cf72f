"""How long the program takes to start: help, import, and the first round of the embedded default.

    python benchmarks/start.py [--starts 7] [--only help,import,torch,round]

Each start is a process of its own; the first of each kind, which may wait for the disk, is not counted. Wall-clock
grows with whatever else the machine does, so processor time, of the process and all its threads, is beside it. The
first round is done when its record is on disk; the process is then killed.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

USE = "import mmfl; mmfl.train, mmfl.Federation, mmfl.data.digits, mmfl.models.SmallCNN"


def until_end(*arguments: str) -> None:
    """Runs Python with these arguments until it ends."""
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)


def until_first_round() -> None:
    """Starts `mmfl run` and kills it once its first record is there."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "run" / "metrics.jsonl"
        command = [sys.executable, "-m", "mmfl", "run", "--quiet", "--out", str(records.parent)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (records.exists() and records.stat().st_size):
                time.sleep(0.01)
            process.kill()


STARTS: dict[str, tuple[str, str, Callable[[], None]]] = {
    "help": ("`mmfl --help`", "0.3", lambda: until_end("-m", "mmfl", "--help")),
    "import": ("`import mmfl`, and use of `mmfl.train`", "2.5", lambda: until_end("-c", USE)),
    "torch": ("`import torch, pandas`, for comparison", "", lambda: until_end("-c", "import torch, pandas")),
    "round": ("`mmfl run`, first round", "6", until_first_round),
}


def measure(start: Callable[[], None]) -> tuple[float, float]:
    """Wall-clock and processor seconds of a start."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    start()
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--only", default=",".join(STARTS))
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; Python {platform.python_version()}")
    print("| start | to reach s | wall-clock s, best | median | processor s, best | median |")
    print("|---|---|---|---|---|---|")
    for name in options.only.split(","):
        label, goal, start = STARTS[name]
        walls, processors = zip(*[measure(start) for _ in range(options.starts + 1)][1:], strict=True)
        cells = [f"{pick(each):.2f}" for each in (walls, processors) for pick in (min, statistics.median)]
        print(f"| {label} | {goal} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
