"""FedAvg on CIFAR-10 in mmfl, pfl-research, fluke, Flower's simulation and a plain PyTorch loop, side by side.

The workload is the one known from pfl-research's benchmark: 1000 users with 50 images, 50 users a round, one epoch in
batches of 10, two convolutions with 1.6 million parameters (`peers/workload.py`). Each framework has a virtual
environment of its own, made on first use with packages from PyPI, and a worker process that stays alive
(`peers/*_worker.py`). Workers take turns, a few rounds each, so that all of them meet the same machine; what is
compared is always measured within one such cycle. Models are tested once, at the end, which is not timed.

    MMFL_DATA=... python benchmarks/frameworks.py [--blocks 10] [--rounds 2] [--only mmfl,pfl,flower]
    MMFL_DATA=... MMFL_DEVICE=cuda python benchmarks/frameworks.py --only mmfl,tf32,plain

Linux only: workers that listen on the network (Ray, torchrun) run in a network namespace without any but its loopback.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import mmfl

PEERS = Path(__file__).parent / "peers"
WARM_UP = 2  # rounds
PRIVATE = ["unshare", "-rnpf", "--kill-child", "--mount-proc", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


@dataclass(frozen=True)
class Framework:
    """How to start a worker: its name in the table, its file, what to install for it, and the ratio to reach.

    `processes` above 1 are started by torchrun; `private` gives it a network namespace.
    """

    name: str
    worker: str
    package: str | None = None
    target: float | None = None
    processes: int = 1
    private: bool = False
    options: tuple[str, ...] = ()

    @property
    def environment(self) -> str:
        """The name of its virtual environment."""
        return self.worker.removesuffix("_worker.py")


FRAMEWORKS = {
    "mmfl": Framework("mmfl", "mmfl_worker.py"),
    "bfloat16": Framework("mmfl, bfloat16", "mmfl_worker.py", options=("bfloat16",)),
    "tf32": Framework("mmfl, TF32", "mmfl_worker.py", options=("tf32",)),
    "plain": Framework("plain PyTorch loop", "plain_worker.py"),
    "pfl": Framework("pfl-research", "pfl_worker.py", "pfl[pytorch]", 1.3),
    "pfl2": Framework("pfl-research, two processes", "pfl_worker.py", "pfl[pytorch]", None, 2, True),
    "fluke": Framework("fluke", "fluke_worker.py", "fluke-fl", 2),
    "flower": Framework("Flower simulation", "flower_worker.py", "flwr[simulation]", 5, private=True),
}


class FailureError(Exception):
    """A framework that could not be installed or run; says why."""


def python_of(framework: Framework, cache: Path) -> str:
    """The interpreter of the framework's environment, which is made if it is not there: torch as here, then itself."""
    if framework.package is None:
        return sys.executable
    folder = cache / framework.environment
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        version = f"torch=={torch.__version__.split('+')[0]}"
        constraints = cache / "constraints.txt"
        cache.mkdir(parents=True, exist_ok=True)
        constraints.write_text(version + "\n")
        print(f"installing {framework.package} into {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for wanted in (version, framework.package):
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints]
            made = subprocess.run([*install, wanted, "numpy"], capture_output=True, text=True)
            if made.returncode:
                raise FailureError(f"cannot be installed: {_last_line(made.stderr)}")
        done.touch()
    return str(python)


@dataclass
class Worker:
    """A framework's process, kept alive between blocks; remembers seconds a round of every block."""

    framework: Framework
    process: subprocess.Popen[str]
    log: Any
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, framework: Framework, python: str, folder: Path, rounds: int) -> "Worker":
        """Starts the process, which waits for its first block."""
        command = [python]
        if framework.processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={framework.processes}"]
        command += [str(PEERS / framework.worker), str(folder), str(rounds), *framework.options]
        if framework.private:
            if not (shutil.which("unshare") and shutil.which("ip")):
                raise FailureError("listens on the network, and there is no `unshare` or `ip` to keep it private")
            command = PRIVATE + command
        ours = [str(Path(mmfl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        path = [str(PEERS), *(ours if framework.package is None else [])]
        environment = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(path)}
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        return cls(framework, process, log)

    def train(self, rounds: int, count: bool = True) -> None:
        """A block of rounds."""
        assert self.process.stdin
        before = _processor_seconds(self.process.pid)
        with suppress(BrokenPipeError):  # it has ended: its last words are in the log
            self.process.stdin.write(f"{rounds}\n")
            self.process.stdin.flush()
        spent = self._read()["seconds"]
        if count:
            self.seconds.append(spent / rounds)
            self.processor_seconds.append((_processor_seconds(self.process.pid) - before) / rounds)

    def finish(self) -> None:
        """Waits for the test after the last round."""
        self.answer = self._read()

    def stop(self) -> None:
        """Ends the process, and with it all that runs in its namespace."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise FailureError(f"failed: {_last_line(self.log.read())}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _processor_seconds(root: int) -> float:
    """Seconds of processor time of a process and all that descend from it."""
    parents, ticks = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, fields = int(entry.parent.name), entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        parents[pid], ticks[pid] = int(fields[1]), sum(int(n) for n in fields[11:15])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def write_workload(folder: Path) -> str:
    """Images, who has which, and initial weights, for all workers to read; says what they are."""
    sys.path.insert(0, str(PEERS))
    from workload import IMAGES, USERS, Workload

    data = mmfl.data.SOURCES["cifar10"]()
    x, x_test = (images.float() / 255 for images in (data.x, data.x_test))
    Workload.write(folder, x, data.y.long(), x_test, data.y_test.long())
    drawn = "each image with one user" if len(x) >= USERS * IMAGES else "users draw theirs from these, so they overlap"
    return f"CIFAR-10: {len(x):,} training images ({drawn}), {len(x_test):,} test images"


def measure(names: Sequence[str], cache: Path, rounds: int, blocks: int) -> str:
    """Starts the workers, lets them take turns, and makes the table."""
    workers: dict[str, Worker] = {}
    failures: dict[str, str] = {}

    def each(what: str, *args: Any) -> None:
        for name in list(workers):
            try:
                getattr(workers[name], what)(*args)
            except FailureError as failure:
                failures[name] = str(failure)
                workers.pop(name).stop()

    with tempfile.TemporaryDirectory() as place:
        print(write_workload(Path(place)), flush=True)
        try:
            for name in names:
                try:
                    python = python_of(FRAMEWORKS[name], cache)
                    workers[name] = Worker.start(FRAMEWORKS[name], python, Path(place), WARM_UP + rounds * blocks)
                except FailureError as failure:
                    failures[name] = str(failure)
            each("train", WARM_UP, False)
            for block in range(blocks):
                each("train", rounds)
                print(f"cycle {block + 1} of {blocks}", _progress(workers), file=sys.stderr, flush=True)
            each("finish")
        finally:
            for worker in workers.values():
                worker.stop()
    return table(names, workers, failures)


def _progress(workers: dict[str, Worker]) -> str:
    return ", ".join(f"{name} {worker.seconds[-1]:.2f} s" for name, worker in workers.items())


def table(names: Sequence[str], workers: dict[str, Worker], failures: dict[str, str]) -> str:
    """A row a framework; ratios are those of one cycle, their median and range over cycles, to mmfl in float32 and,
    where that was measured, in bfloat16."""
    lines = [
        "| framework | version | cores used as | s a round | ratio (range) | to bfloat16 | to reach | CPU s a round | "
        "accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    if "mmfl" in failures:
        return f"mmfl {failures['mmfl']}"
    unit = statistics.median(workers["mmfl"].processor_seconds)
    for name in names:
        framework = FRAMEWORKS[name]
        if name in failures:
            lines.append(f"| {framework.name} | | {failures[name]} | | | | | | |")
            continue
        worker = workers[name]
        ratio, narrow = (_ratio(worker, workers.get(ours)) for ours in ("mmfl", "bfloat16"))
        goal = f"{framework.target:g}x" if framework.target else ""
        seconds, processor = (statistics.median(s) for s in (worker.seconds, worker.processor_seconds))
        times = f" ({processor / unit:.2f}x)" if name != "mmfl" else ""
        lines.append(
            f"| {framework.name} | {worker.answer['version']} | {worker.answer['threads']} | {seconds:.2f} | {ratio} | "
            f"{narrow} | {goal} | {processor:.2f}{times} | {worker.answer['accuracy']:.3f} |"
        )
    return "\n".join(lines)


def _ratio(worker: Worker, ours: Worker | None) -> str:
    if ours is None or worker is ours:
        return ""
    ratios = [theirs / mine for theirs, mine in zip(worker.seconds, ours.seconds, strict=True)]
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a block")
    parser.add_argument("--blocks", type=int, default=10, help="blocks of each framework, in turns")
    here = ",".join(name for name in FRAMEWORKS if name != "tf32")
    parser.add_argument("--only", default=here, help="which, separated by commas")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmfl-benchmarks"
    parser.add_argument("--cache", type=Path, default=default, help="folder of the virtual environments")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # waiting workers must not disturb the one that runs
    chosen = options.only.split(",")
    names = ["mmfl", *(name for name in FRAMEWORKS if name in chosen and name != "mmfl")]
    print(f"{os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}")
    print(measure(names, options.cache, options.rounds, options.blocks))


if __name__ == "__main__":
    main()
