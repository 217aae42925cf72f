"""Several processes share a run: seconds a round with one, two and more of them, and the bytes that they add up.

Strong scaling: the same clients, divided among more processes. Weak scaling: as many clients more as processes. Each
process has one core, so that K processes use K cores. Everyone trains in every round, and every round is tested.

    python benchmarks/scaling.py [--processes 1,2] [--clients 400] [--rounds 5]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np
import torch

import mmfl
from mmfl.engine import Simulation
from mmfl.methods import make_method
from mmfl.training import Replica, rounds
from mmfl.updates.world import leave

TASKS, EXAMPLES = 3, 60
MODEL = partial(mmfl.models.Perceptron, inputs=64, hidden=256, classes=10)


def federation(clients: int) -> mmfl.Federation:
    """Three tasks with as many examples for each client."""
    rng = np.random.default_rng(0)
    tasks = []
    for s in range(TASKS):
        x = rng.normal(size=(clients * EXAMPLES, 64)).astype(np.float32)
        y, owner = rng.integers(0, 10, len(x)), np.repeat(np.arange(clients), EXAMPLES)
        data = mmfl.data.from_arrays(x, y, owner, test=(x[:100], y[:100]))
        tasks.append(mmfl.Task(f"task {s}", MODEL, data, lr=0.05, epochs=5, batch_size=20))
    return mmfl.Federation(tasks)


def count_bytes(world: object) -> list[int]:
    """Lets the world note the size of every sum it is asked for."""
    sizes: list[int] = []
    plain = world.sum  # type: ignore[attr-defined]

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return plain(tensor)

    world.sum = counted  # type: ignore[attr-defined]
    return sizes


def work(clients: int, method: str, number: int) -> None:
    """One process's share; the first prints seconds a round and bytes added up."""
    torch.set_num_threads(1)
    engine = Simulation("cpu", "vectorised")
    sizes = count_bytes(engine.world)
    replica = Replica.start(federation(clients), make_method(method), 0, 1.0, engine)
    happened = rounds([replica], engine, number + 1)
    next(happened)
    sizes.clear()
    spent = []
    for _ in range(number):
        begun = time.perf_counter()
        next(happened)
        spent.append(time.perf_counter() - begun)
    if engine.world.first:
        travelled = sum(sizes) // number if engine.world.size > 1 else 0
        print(json.dumps({"seconds": statistics.median(spent), "bytes": travelled}))
    leave()


def measure(processes: int, clients: int, number: int, method: str) -> dict:
    """Starts the processes and waits for what the first of them says."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    told = ["--work", method, "--clients", str(clients), "--rounds", str(number)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, __file__, *told], capture_output=True, text=True, env=env, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--clients", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.clients, options.work, options.rounds)
        return
    print(f"{os.cpu_count()} cores, {TASKS} tasks of {sum(p.numel() for p in MODEL().parameters()):,} parameters")
    print("| method | processes | strong: s a round | speed-up | weak: s a round | efficiency | bytes summed a round |")
    print("|---|---|---|---|---|---|---|")
    for method in ("full", "mmfl-stalevr"):
        base = None
        for processes in map(int, options.processes.split(",")):
            strong = measure(processes, options.clients, options.rounds, method)
            weak = measure(processes, processes * options.clients, options.rounds, method)
            base = base or strong["seconds"]
            cells = [f"{strong['seconds']:.2f}", f"{base / strong['seconds']:.2f}x", f"{weak['seconds']:.2f}"]
            cells += [f"{base / weak['seconds']:.0%}", f"{strong['bytes']:,}"]
            print(f"| {method} | {processes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
