"""The time of a round on many GPUs, on paper: from measured compute, the bytes that processes add up, and latency.

    python benchmarks/estimate.py [--gpus 1,8,64,512] [--bandwidth 50] [--latency 10] [--flops 15]

The bytes are those that a test counts on four processes. Compute and decisions were measured (README.md here): what one
H200 does in float32 in large cohorts, the time that its host needs for a round however small, and one core's decisions.
Nothing of NCCL was measured: bandwidth and latency are assumptions, of the links between machines.
"""

import argparse
import math
from dataclasses import dataclass

PARAMETER = 4  # bytes


@dataclass(frozen=True)
class Method:
    """What a method adds up over processes, and what it computes.

    `numbers` are those of 8 bytes for each training: its loss and steps, whether it is finite, and what the method
    asks besides. `vector` is how many bytes for each parameter of a task, in `vectors` sums.
    """

    losses: bool = False
    numbers: int = 3
    vector: int = PARAMETER
    vectors: int = 1
    everyone: bool = False


METHODS = {
    "random": Method(),
    "mmfl-lvr": Method(losses=True),
    "mmfl-stalevre": Method(losses=True, numbers=5),
    "mmfl-stalevr": Method(losses=True, numbers=6, everyone=True),
    "forecast": Method(numbers=6),
    "scaffold": Method(vector=3 * PARAMETER, vectors=2),
    "mifa": Method(vector=2 * PARAMETER),
    "full": Method(numbers=4, everyone=True),
}


def round_bytes(method: Method, clients: int, parameters: list[int], trainings: int) -> int:
    """Bytes that every process adds up in a round of one replica that is not tested.

    After training all compare sums of their weights, twice 8 bytes for each task, and say what they store.
    """
    losses = 8 * clients * len(parameters) if method.losses else 0
    return losses + 8 * method.numbers * trainings + method.vector * sum(parameters) + 16 * len(parameters) + 8


def round_sums(method: Method, tasks: int) -> int:
    """How many sums those are: losses, losses and steps of trainings, three in the end, and the others by task."""
    return int(method.losses) + 4 + tasks * (method.numbers - 2 + method.vectors)


@dataclass(frozen=True)
class Work:
    """A federation: clients, parameters of each task, operations of a client's loss on average, trainings a round."""

    clients: int
    parameters: list[int]
    loss: float
    trainings: int

    @property
    def training(self) -> float:
        """Operations of a training: five epochs, forward and backward, three times as much as forward."""
        return 5 * 3 * self.loss


@dataclass(frozen=True)
class Machine:
    """Operations a second of a GPU, bytes a second and seconds of a step of all-reduce, seconds of the host a round.

    A core decides for each pair of client and task where an allocation looks at all, otherwise for each client.
    """

    operations: float
    bandwidth: float
    latency: float
    host: float = 7e-3
    by_pair: float = 27e-9
    by_client: float = 9e-9


WORKS = {
    "lvr-3tasks, 120": Work(120, [843_658] * 3, 1.5e8, 26),
    "1,000,000": Work(1_000_000, [1_000_000] * 5, 50 * 6.5e6, 10_000),
    "10,000,000": Work(10_000_000, [1_000_000] * 5, 50 * 6.5e6, 100_000),
}
"""The preset, whose operations `profile_round.py` counts, and clients of 50 examples of 6.5 MFLOP."""


def trainings_of(method: Method, work: Work) -> int:
    """How many trainings a round has."""
    return work.clients * len(work.parameters) if method.everyone else work.trainings


def parts(method: Method, work: Work, machine: Machine, gpus: int) -> dict[str, float]:
    """Seconds of a round by what takes them; a ring passes on nearly twice the bytes, in as many steps as a tree."""
    pairs, trainings = work.clients * len(work.parameters), trainings_of(method, work)
    operations = trainings * work.training + (pairs * work.loss if method.losses else 0.0)
    travelled = 2 * (gpus - 1) / gpus * round_bytes(method, work.clients, work.parameters, trainings)
    steps = 2 * math.ceil(math.log2(gpus)) * round_sums(method, len(work.parameters))
    looks_at_all = method.losses or method.everyone
    return {
        "compute": operations / (gpus * machine.operations),
        "host": machine.host,
        "bytes": travelled / machine.bandwidth,
        "latency": steps * machine.latency,
        "decision": pairs * machine.by_pair if looks_at_all else work.clients * machine.by_client,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", default="1,8,64,512")
    parser.add_argument("--bandwidth", type=float, default=50, help="GB/s in and out of a GPU")
    parser.add_argument("--latency", type=float, default=10, help="microseconds of a step of a sum")
    parser.add_argument("--flops", type=float, default=15, help="TFLOP/s of a GPU in large cohorts")
    options = parser.parse_args()
    machine = Machine(options.flops * 1e12, options.bandwidth * 1e9, options.latency * 1e-6)
    counts = [int(count) for count in options.gpus.split(",")]
    headings = " | ".join(f"{count} GPU{'s' * (count > 1)}" for count in counts)
    print(f"| clients | method | MB added up | {headings} |")
    print("|---|---|---|" + "---|" * len(counts))
    for name, work in WORKS.items():
        for label in ("random", "mmfl-lvr", "mmfl-stalevre", "full"):
            method = METHODS[label]
            size = round_bytes(method, work.clients, work.parameters, trainings_of(method, work)) / 1e6
            cells = []
            for count in counts:
                spent = parts(method, work, machine, count)
                total, most = sum(spent.values()), max(spent, key=lambda part: spent[part])
                told = f"{total:,.1f} s" if total >= 1 else f"{1000 * total:.0f} ms"
                cells.append(f"{told} ({most} {spent[most] / total:.0%})")
            print(f"| {name} | {label} | {size:,.1f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
