"""A million clients of whom a hundred train: where the time of a round goes, and what a federation of them takes.

Methods that treat all clients alike should cost what the active clients cost. Each of three tasks has a logistic
regression on a few features and one example a client. For each method: processor time of one thread by phase, the least
of many rounds (other work on the machine only adds to it), the bytes of the last round's record, and the bytes of
arrays that the rounds left behind. With `--losses` it times an allocation by losses instead, which looks at everyone.

    python benchmarks/clients.py [--clients 1000000] [--methods random,mfa-rr] [--active 100] [--rounds 12]
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
    parser.add_argument("--losses", action="store_true", help="time an allocation by losses")
    parser.add_argument("--resume", action="store_true", help="time a run and its resumption")
    parser.add_argument("--profile", default="", metavar="METHOD", help="functions instead of phases")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"CPU, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}")
    tracemalloc.start()
    begun = time.process_time()
    federation = federation_of(options.clients)
    data = sum(part.nbytes for part in (federation.tasks[0].data.x, federation.tasks[0].data.y))
    held = tracemalloc.get_traced_memory()[0] - data
    tracemalloc.stop()
    built = time.process_time() - begun
    pairs = options.clients * TASKS
    print(f"{options.clients:,} clients x {TASKS} tasks: built in {built:.2f} s, {held / pairs:.1f} bytes a pair")
    if options.profile:
        profile(federation, options.profile, options)
    elif options.losses:
        allocation_by_losses(federation, options)
    elif options.resume:
        resume(federation, options)
    else:
        print(f"| method | active | {' ms | '.join((*PHASES, 'round'))} ms | bytes a record | bytes left a round |")
        print("|---|---|" + "---|" * (len(PHASES) + 3))
        for method in options.methods.split(","):
            print(measure(federation, method, options), flush=True)


if __name__ == "__main__":
    main()
