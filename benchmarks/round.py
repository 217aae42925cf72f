"""A round of the papers' three tasks: mmfl against the plain PyTorch loop, side by side in one run.

A round of mmfl is all of it but the test: losses of all clients where the method asks for them, allocation, training,
aggregation and the record. The plain loop does the same clients' loss evaluations and trainings, one after another,
and nothing else. Both are timed in turn: a few rounds of mmfl that follow one another, as those of a run do, the first
of them not counted, then the loop over what the last of them asked for; milliseconds are medians.

    python benchmarks/round.py [--rounds 5] [--device cpu|cuda] [--precision float32|tf32] [--methods random,full]

On a GPU the first rounds record the steps that later ones play: rounds are timed after 40 of them.
"""

import argparse
import platform
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor
from watched import Watched, federation_of, now, rounds_of

import mmfl
from engine import plain_loop
from mmfl.data.dataset import as_inputs
from mmfl.engine import Simulation, Workload
from mmfl.engine.precision import matmul_precision

IN_A_ROW = 5
METHODS = ("random", "mmfl-lvr", "mmfl-stalevre", "mmfl-stalevr", "full")


@torch.no_grad()
def plain_losses(workload: Workload, device: torch.device, inputs: Tensor, targets: Tensor) -> list[float]:
    """The mean loss of each client, one after another."""
    task = workload.federation.tasks[workload.task]
    module = task.build().to(device).eval()
    means = []
    for client in workload.client:
        rows = torch.from_numpy(workload.federation.shards[workload.task].of(client)).to(device)
        means.append(task.loss(module(as_inputs(inputs[rows])), targets[rows]).mean())
    return torch.stack(means).tolist() if means else []


def plain_round(engine: Watched, placed: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Seconds in which the plain loop does what the watched engine was last asked for."""
    device = engine.device
    begun = now(device)
    for asked in engine.asked["losses"]:
        with matmul_precision(engine.architecture(asked.federation.tasks[asked.task]).precision):
            plain_losses(asked, device, *placed[asked.task])
    for asked in engine.asked["training"]:
        with matmul_precision(engine.architecture(asked.federation.tasks[asked.task]).precision):
            plain_loop(asked.federation, asked.client, device, *placed[asked.task], number=asked.task)
    return now(device) - begun


def compare(federation: mmfl.Federation, rate: float, method: str, engine: Watched, repeats: int, warm_up: int) -> str:
    placed = [(task.data.x.to(engine.device), task.data.y.to(engine.device)) for task in federation.tasks]
    happening = rounds_of(federation, method, rate, engine)
    for _ in range(warm_up):
        next(happening)
    pairs = []
    for _ in range(repeats):
        seconds = []
        for _ in range(1 + IN_A_ROW):
            engine.forget()
            begun = now(engine.device)
            next(happening)
            seconds.append(now(engine.device) - begun)
        pairs.append((plain_round(engine, placed), statistics.median(seconds[1:])))
    ratios = [plain / ours for plain, ours in pairs]
    plain_ms, ours_ms = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    trainings, passes = (sum(len(w.client) for w in engine.asked[phase]) for phase in ("training", "losses"))
    return (
        f"| {method} | {trainings} | {passes} | {plain_ms:.1f} | {ours_ms:.1f} | "
        f"{statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="lvr-3tasks")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--warm-up", type=int, help="rounds before; by default 1, on a GPU 40 (recordings are made)")
    parser.add_argument("--no-record", action="store_true", help="start all kernels one by one (GPU)")
    options = parser.parse_args()
    federation, rate = federation_of(options.preset)
    engine = Watched(Simulation(options.device, precision=options.precision, record=not options.no_record))
    cuda = engine.device.type == "cuda"
    what = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    print(f"{what}; Python {platform.python_version()}, torch {torch.__version__}; {options.precision}")
    warm_up = options.warm_up or (40 if cuda else 1)
    print("| method | trainings | loss evaluations | plain loop ms | mmfl ms | ratio (range) |")
    print("|---|---|---|---|---|---|")
    for method in options.methods.split(","):
        print(compare(federation, rate, method, engine, options.rounds, warm_up), flush=True)


if __name__ == "__main__":
    main()
