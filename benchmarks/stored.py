"""Aggregations that remember, with very many clients: the time of a round as more and more of them have been seen.

50 of 100,000 clients are active in a round, every time others, so that the memory grows by 50 updates a round. Prints
milliseconds a round (median over the last rounds) when a thousand, ten thousand and all clients have been seen once,
beside the direct formula, which passes over all stored updates.

    python benchmarks/stored.py [--parameters 2000] [--where device|host|file] [--precision float32|float16]
"""

import argparse
import platform
import statistics
import time

import numpy as np
import torch

from mmfl.aggregation import MIFA, AggregationRule, FedVARP, StaleVRE
from mmfl.federation import RoundView
from mmfl.stored import Keep, Stored
from mmfl.updates import Updates

CLIENTS, ACTIVE, MEASURED = 100_000, 50, 40


def view_of(round: int) -> RoundView:
    """A round in which everyone is there and has the one task."""
    sizes = np.full((CLIENTS, 1), 10)
    return RoundView(round, 0, sizes, sizes / sizes.sum(), np.ones(CLIENTS, dtype=np.int64), float(ACTIVE))


def updates_of(round: int, parameters: int) -> Updates:
    """Random updates of the next clients in turn."""
    client = np.arange((round - 1) * ACTIVE, round * ACTIVE) % CLIENTS
    flat = torch.randn(ACTIVE, parameters, generator=torch.Generator().manual_seed(round))
    chance = np.full(ACTIVE, ACTIVE / CLIENTS)
    return Updates(0, client, np.ones(ACTIVE, dtype=np.int64), chance, flat, np.ones(ACTIVE), np.ones(ACTIVE, int))


def direct(stored: Stored) -> float:
    """Milliseconds of sum d h by a pass over all that is stored."""
    begun = time.perf_counter()
    total = torch.zeros(stored.none.shape[1])
    for _, rows in stored.batches(1000):
        total += rows.sum(0) / CLIENTS
    return 1000 * (time.perf_counter() - begun)


def measure(rule: AggregationRule, parameters: int, marks: list[int]) -> list[tuple[float, float, float]]:
    """At each mark of clients seen: milliseconds a round, of the direct sum, and MiB stored."""
    weights = torch.zeros(parameters)
    state = rule.start(CLIENTS, weights)
    rows, spent = [], []
    for round in range(1, max(marks) // ACTIVE + 1):
        view, updates = view_of(round), updates_of(round, parameters)
        begun = time.perf_counter()
        weights, state = rule.aggregate(weights, updates, view, state)
        spent.append(1000 * (time.perf_counter() - begun))
        if round * ACTIVE in marks:
            rows.append((statistics.median(spent[-MEASURED:]), direct(state.stored), state.stored.nbytes / 2**20))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=int, default=2000)
    parser.add_argument("--where", default="device")
    parser.add_argument("--precision", default="float32")
    options = parser.parse_args()
    keep = Keep(options.where, options.precision)
    marks = [1_000, 10_000, 100_000]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"CPU; {versions}; {options.parameters} parameters; {keep}")
    print("| aggregation |", " | ".join(f"{mark:,} seen ms | direct ms | MiB" for mark in marks), "|")
    print("|---|" + "---|" * (3 * len(marks)))
    for rule in (FedVARP(keep), MIFA(keep), StaleVRE(keep)):
        cells = [f"{ms:.1f} | {all_ms:.1f} | {mib:.0f}" for ms, all_ms, mib in measure(rule, options.parameters, marks)]
        print(f"| {type(rule).__name__} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
