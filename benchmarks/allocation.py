"""Allocation alone: probabilities of least variance and draws for up to a million clients.

Prints seconds a round for N clients and S tasks: the probabilities of MMFL-LVR, and each way to draw from them. All
of it is array code over [clients, tasks]; the last column is the time per client.

    python benchmarks/allocation.py [--largest 1000000]
"""

import argparse
import platform
import time
from collections.abc import Callable

import numpy as np

from mmfl.allocation import least_variance
from mmfl.federation import RoundView
from mmfl.sampling import DRAWS


def round_of(clients: int, tasks: int) -> tuple[RoundView, np.ndarray]:
    """A round of clients with unequal data, capacities and losses, a tenth of the pairs missing."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 100, (clients, tasks)) * (rng.random((clients, tasks)) > 0.1)
    sizes[sizes.sum(1) == 0, 0] = 1
    share = sizes / sizes.sum(0)
    capacity = np.minimum(rng.integers(1, 4, clients), (sizes > 0).sum(1))
    view = RoundView(1, 0, sizes, share, capacity, 0.1 * capacity.sum())
    return view, share * rng.exponential(1.0, share.shape) / capacity[:, None]


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of some calls."""
    spent = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begun)
    return min(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--largest", type=int, default=1_000_000)
    largest = parser.parse_args().largest
    print(f"CPU; Python {platform.python_version()}, numpy {np.__version__}")
    print("| clients | tasks | probabilities s |", " | ".join(f"{name} s" for name in DRAWS), "| µs a client |")
    print("|---|---|---|" + "---|" * (len(DRAWS) + 1))
    for clients in (10**k for k in range(3, 7)):
        for tasks in (3, 5, 50):
            if clients > largest or clients * tasks > 10**7:
                continue
            view, importance = round_of(clients, tasks)
            p = least_variance(importance, view.capacity, view.budget)
            first = seconds(lambda: least_variance(importance, view.capacity, view.budget))  # noqa: B023
            draws = [seconds(lambda draw=draw: draw(p, view)) for draw in DRAWS.values()]  # noqa: B023
            both = 1e6 * (first + min(draws)) / clients
            cells = " | ".join(f"{value:.4f}" for value in draws)
            print(f"| {clients:,} | {tasks} | {first:.4f} | {cells} | {both:.2f} |", flush=True)


if __name__ == "__main__":
    main()
