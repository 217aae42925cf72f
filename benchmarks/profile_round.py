"""Where the time of a round goes, and how near it is to what the machine can do.

Some rounds of a method, after a first that warms up: for each phase its time, the floating-point operations of the
model's matrix products and convolutions in it, and their rate beside that of a large matrix product, which is measured
between the rounds. Operations are counted once, forward and backward, and multiplied by the examples that pass.

    python benchmarks/profile_round.py [--method mmfl-lvr] [--preset lvr-3tasks] [--rounds 5]
                                       [--device cpu|cuda] [--precision float32|tf32] [--cohort 1024]

With `--cohort N` it times the local training of N clients alone.
"""

import argparse
import platform
from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from watched import Timed, federation_of, now, rounds_of

import mmfl
from mmfl.data.dataset import as_inputs
from mmfl.engine import Simulation, Training, Workload
from mmfl.engine.precision import matmul_precision
from mmfl.local import PlainSGD

PHASES = {
    "losses": "losses of all clients",
    "allocation": "allocation",
    "training": "training",
    "aggregation": "aggregation",
    "evaluation": "evaluation",
    "rest": "rest",
}
SIDE = {"cpu": 2048, "cuda": 8192}


@cache
def operations(task: mmfl.Task) -> tuple[int, int]:
    """Floating-point operations for one example: forward, and forward and backward."""
    module, x, y = task.build(), as_inputs(task.data.x[:2]), task.data.y[:2]
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        module(x)
    with FlopCounterMode(display=False) as both:
        task.loss(module(x), y).mean().backward()
    return forward.get_total_flops() // 2, both.get_total_flops() // 2


def work_of(phase: str, asked: Iterable[Workload]) -> float:
    """Operations of all requests of a phase."""
    total = 0.0
    for each in asked:
        task = each.federation.tasks[each.task]
        forward, both = operations(task)
        examples = int(each.federation.sizes[each.client, each.task].sum())
        if phase == "losses":
            total += forward * examples
        elif phase == "training":
            total += both * examples * task.epochs
        else:
            held = each.federation.test_shards[each.task]
            total += forward * (len(task.data.x_test) if held is None else len(held.index))
    return total


class Product:
    """A large matrix product of the same precision; `rate` is the best of those measured, in operations a second."""

    def __init__(self, engine: Simulation):
        side = SIDE[engine.device.type]
        self.engine, self.work, self.rate = engine, 2 * side**3, 0.0
        self.a, self.b, self.out = (torch.randn(side, side, device=engine.device) for _ in range(3))

    def measure(self, times: int = 3) -> None:
        with matmul_precision(self.engine.precision):
            for _ in range(times):
                begun = now(self.engine.device)
                torch.mm(self.a, self.b, out=self.out)
                self.rate = max(self.rate, self.work / (now(self.engine.device) - begun))


def row(name: str, seconds: float, whole: float, work: float, product: Product, repeats: int) -> str:
    """A line of the table."""
    cells = f"| {name} | {1000 * seconds / repeats:.1f} | {seconds / whole:.1%} |"
    if not work:
        return f"{cells} | | |"
    rate = work / seconds
    return f"{cells} {work / repeats / 1e9:.2f} | {rate / 1e9:.1f} | {rate / product.rate:.0%} |"


def profile_round(options: argparse.Namespace, engine: Timed) -> list[str]:
    """The phases of some rounds."""
    federation, rate = federation_of(options.preset)
    product = Product(engine.engine)
    happening = rounds_of(federation, options.method, rate, engine, evaluate_every=1)
    for _ in range(40 if engine.device.type == "cuda" else 1):  # recordings are made
        next(happening)
    engine.forget()
    whole = 0.0
    for _ in range(options.rounds):
        product.measure()
        begun = now(engine.device)
        next(happening)
        whole += now(engine.device) - begun
    engine.seconds["rest"] = whole - sum(engine.seconds.values())
    work = {phase: work_of(phase, asked) for phase, asked in engine.asked.items()}
    lines = [
        row(name, engine.seconds[phase], whole, work.get(phase, 0.0), product, options.rounds)
        for phase, name in PHASES.items()
        if engine.seconds[phase] > 0
    ]
    return [*lines, row("round", whole, whole, sum(work.values()), product, options.rounds), _said(product)]


def profile_cohort(options: argparse.Namespace, engine: Timed) -> list[str]:
    """Local training of so many clients of the first task, by the best of some repeats."""
    federation, _ = federation_of(options.preset, f"federation.clients={options.cohort}", "federation.lacks=0.0")
    product = Product(engine.engine)
    training = Training(federation, 0, engine.initial(federation, 0, 0), np.arange(options.cohort), 1, 0, PlainSGD())
    engine.train([training])
    spent = []
    for _ in range(options.rounds):
        product.measure()
        engine.forget()
        engine.train([training])
        spent.append(engine.seconds["training"])
    best, work = min(spent), work_of("training", [training])
    return [row(f"training of {options.cohort} clients", best, best, work, product, 1), _said(product)]


def _said(product: Product) -> str:
    side = product.a.shape[0]
    return f"\nMatrix product {side} x {side} x {side}: {product.rate / 1e9:.1f} GFLOP/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="lvr-3tasks")
    parser.add_argument("--method", default="mmfl-lvr")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--no-record", action="store_true", help="start all kernels one by one (GPU)")
    parser.add_argument("--cohort", type=int)
    options = parser.parse_args()
    engine = Timed(Simulation(options.device, precision=options.precision, record=not options.no_record))
    cuda = engine.device.type == "cuda"
    what = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    about = "" if options.cohort else f"; {options.method}, mean of {options.rounds} rounds"
    print(f"{what}; {versions}; {options.preset}; {options.precision}{about}")
    print("| phase | ms | share | GFLOP | GFLOP/s | of a matrix product |")
    print("|---|---|---|---|---|---|")
    print("\n".join(profile_cohort(options, engine) if options.cohort else profile_round(options, engine)))


if __name__ == "__main__":
    main()
