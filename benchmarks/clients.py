"""A million clients of whom a hundred train: where the time of a round goes, and what a federation of them takes.

Methods that treat all clients alike should cost what the active clients cost. Each of three tasks has a logistic
regression on a few features and one example a client. For each method: processor time of one thread by phase, the least
of many rounds (other work on the machine only adds to it), the bytes of the last round's record, and the bytes of
arrays that the rounds left behind. With `--growth` it runs many rounds instead and says what those of each tenth take,
and with `--losses` it times an allocation by losses, which depends on everyone.

    python benchmarks/clients.py [--clients 1000000] [--methods random,mfa-rr] [--active 100] [--rounds 12]
    python benchmarks/clients.py --growth [--rounds 10000]
    python benchmarks/clients.py --losses
    python benchmarks/clients.py --resume
    python benchmarks/clients.py --profile random
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import statistics
import tempfile
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mmfl
from mmfl.engine import Simulation
from mmfl.methods import make_method
from mmfl.training import Replica, loop, rounds

METHODS = "random,mifa,fedvarp,multi-fedavg,mfa-rand,mfa-rr,fedcluster,fedavg"
PHASES = ("view", "allocation", "training", "aggregation", "record", "rest")
TASKS, FEATURES = 3, 4


def federation_of(clients: int) -> mmfl.Federation:
    """Three tasks that share their data, of which every client has one example."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients, FEATURES)).astype(np.float32), rng.integers(0, 2, clients)
    data = mmfl.data.from_arrays(x, y, test=(x[:100], y[:100]))
    model = partial(mmfl.models.LogisticRegression, FEATURES, 2)
    tasks = [mmfl.Task(f"task {s}", model, data, lr=0.1, epochs=1) for s in range(TASKS)]
    return mmfl.Federation(tasks, clients)


class Phases:
    """Processor seconds of the phases of a round; a phase within a phase counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[float] = []

    def timed(self, phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted as that of the phase."""

        def call(*args: Any, **named: Any) -> Any:
            self._open.append(0.0)
            begun = time.process_time()
            answer = work(*args, **named)
            spent = time.process_time() - begun
            self.seconds[phase] += spent - self._open.pop()
            if self._open:
                self._open[-1] += spent
            return answer

        return call


def start(federation: mmfl.Federation, method: str, active: int, phases: Phases) -> Any:
    """Rounds of a method, whose phases are timed."""
    made, engine = make_method(method), Simulation("cpu")
    made.allocation.allocate = phases.timed("allocation", made.allocation.allocate)  # type: ignore[method-assign]
    made.aggregation.aggregate = phases.timed("aggregation", made.aggregation.aggregate)  # type: ignore[method-assign]
    engine.train = phases.timed("training", engine.train)  # type: ignore[method-assign]
    replica = Replica.start(federation, made, 0, active / int(federation.capacity.sum()), engine)
    replica.view = phases.timed("view", replica.view)  # type: ignore[method-assign]
    return rounds([replica], engine, 10**9, 10**9, 0)


def measure(federation: mmfl.Federation, method: str, options: argparse.Namespace) -> str:
    """A line of the table."""
    phases = Phases()
    happening = start(federation, method, options.active, phases)
    best: dict[str, float] = defaultdict(lambda: float("inf"))
    plain, loop.record = loop.record, phases.timed("record", loop.record)
    tracemalloc.start()
    next(happening)
    held = 0
    for n in range(options.rounds):
        if n == options.rounds // 2:
            tracemalloc.stop()  # it takes time, so the rounds after it are the ones to time
            best.clear()
        phases.seconds.clear()
        begun = time.process_time()
        (record,) = next(happening)
        whole = time.process_time() - begun
        phases.seconds["rest"] = whole - sum(phases.seconds.values())
        for phase, spent in [*phases.seconds.items(), ("round", whole)]:
            best[phase] = min(best[phase], spent)
        if n == 0:
            first = tracemalloc.get_traced_memory()[0]
        if n == options.rounds // 2 - 1:
            held = tracemalloc.get_traced_memory()[0] - first
    loop.record = plain
    cells = " | ".join(f"{1000 * best[phase]:.2f}" for phase in (*PHASES, "round"))
    active, written = record.cost.trainings, len(json.dumps(record.to_json()))
    return f"| {method} | {active} | {cells} | {written:,} | {held / (options.rounds // 2 - 1):,.0f} |"


def growth(federation: mmfl.Federation, method: str, options: argparse.Namespace) -> None:
    """Processor time of a round, memory of the process and bytes of a record, by tenths of many rounds.

    The least time is that of rounds which other work on the machine did not slow down.
    """
    happening, part = start(federation, method, options.active, Phases()), options.rounds // 10
    print("| rounds | ms a round, least | median | resident MiB | bytes a record |")
    print("|---|---|---|---|---|")
    for tenth in range(10):
        spent, written = [], 0
        for _ in range(part):
            begun = time.process_time()
            (record,) = next(happening)
            spent.append(1000 * (time.process_time() - begun))
            written += len(json.dumps(record.to_json()))
        done, memory = (tenth + 1) * part, resident_bytes() / 2**20
        cells = [f"{min(spent):.2f}", f"{statistics.median(spent):.2f}", f"{memory:.1f}", f"{written / part:,.0f}"]
        print(f"| {done - part + 1:,} to {done:,} | {' | '.join(cells)} |", flush=True)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_in_rounds(federation: mmfl.Federation, method: str, options: argparse.Namespace) -> int:
    """The most bytes that are held in three rounds after the first one, while memory is traced."""
    happening = start(federation, method, options.active, Phases())
    next(happening)
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    for _ in range(3):
        next(happening)
    return tracemalloc.get_traced_memory()[1]


def profile(federation: mmfl.Federation, method: str, options: argparse.Namespace) -> None:
    """Where the time of some rounds goes, function by function."""
    happening = start(federation, method, options.active, Phases())
    for _ in range(3):
        next(happening)
    profiler = cProfile.Profile(time.process_time)
    profiler.enable()
    for _ in range(options.rounds):
        next(happening)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def allocation_by_losses(federation: mmfl.Federation, options: argparse.Namespace) -> None:
    """The allocation of mmfl-lvr, given the losses."""
    rule = make_method("mmfl-lvr").allocation
    losses = np.random.default_rng(0).exponential(1.0, federation.sizes.shape)
    spent = []
    for t in range(1, options.rounds + 1):
        view = federation.view(t, rate=options.active / federation.clients, seed=0).with_signals(losses=losses)
        begun = time.process_time()
        rule.allocate(view, None)
        spent.append(time.process_time() - begun)
    print(f"mmfl-lvr: allocation {min(spent):.3f} s")


def resume(federation: mmfl.Federation, options: argparse.Namespace) -> None:
    """A run of two rounds, and the same run resumed for a third."""
    with tempfile.TemporaryDirectory() as folder:
        common = {"rate": options.active / federation.clients, "directory": Path(folder) / "run", "device": "cpu"}
        for last, again in ((2, False), (3, True)):
            begun = time.process_time()
            mmfl.train(federation, "random", last, resume=again, **common)
            print(f"{'resumed' if again else 'run'} to round {last}: {time.process_time() - begun:.2f} s")
        size = (Path(folder) / "run" / "metrics.jsonl").stat().st_size
        print(f"metrics.jsonl: {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--active", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=12, help="at least 4")
    parser.add_argument("--growth", action="store_true", help="many rounds of each method, by tenths")
    parser.add_argument("--losses", action="store_true", help="time an allocation by losses")
    parser.add_argument("--resume", action="store_true", help="time a run and its resumption")
    parser.add_argument("--profile", default="", metavar="METHOD", help="functions instead of phases")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"CPU, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}")
    most_in_rounds(federation_of(1000), "random", options)  # imports what rounds need, which is not the federation's
    tracemalloc.start()
    begun = time.process_time()
    federation = federation_of(options.clients)
    data = sum(part.nbytes for part in (federation.tasks[0].data.x, federation.tasks[0].data.y))
    built, held = time.process_time() - begun, [tracemalloc.get_traced_memory()[0]]
    federation.view(1, rate=options.active / options.clients, seed=0)
    held.append(tracemalloc.get_traced_memory()[0])
    methods = options.methods.split(",")
    held.append(most_in_rounds(federation, methods[0], options))
    tracemalloc.stop()
    told = ", ".join(f"{(each - data) / (options.clients * TASKS):.1f}" for each in held)
    print(f"{options.clients:,} clients x {TASKS} tasks: built in {built:.2f} s")
    print(f"bytes a pair when built, after the first view, at most in rounds of {methods[0]}: {told}")
    if options.profile:
        profile(federation, options.profile, options)
    elif options.losses:
        allocation_by_losses(federation, options)
    elif options.resume:
        resume(federation, options)
    elif options.growth:
        for method in methods:
            print(f"\n{method}:")
            growth(federation, method, options)
    else:
        print(f"| method | active | {' ms | '.join((*PHASES, 'round'))} ms | bytes a record | bytes left a round |")
        print("|---|---|" + "---|" * (len(PHASES) + 3))
        for method in methods:
            print(measure(federation, method, options), flush=True)


if __name__ == "__main__":
    main()
