"""Aggregations that remember, with very many clients: the time of a round as more and more of them have been seen.

50 of 100,000 clients are active in a round, every time others, so that the memory grows by 50 updates a round. Prints
milliseconds a round (median over the last rounds) when a thousand, ten thousand and all clients have been seen once,
beside the direct formula, which passes over all stored updates; what is stored, in MiB and in bytes for each client
seen; and the most memory that the process had held by then, beyond what it began with. The round of Forecast includes
what it learns for the expected residuals of the next draw.

    python benchmarks/stored.py [--parameters 2000] [--where device|host|file] [--precision float32|float16|3-bit|...]
"""

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from mmfl.aggregation import MIFA, AggregationRule, FedVARP, Forecast, StaleVRE
from mmfl.federation import RoundView
from mmfl.updates import Updates
from mmfl.updates.expected_residuals import ExpectedResiduals
from mmfl.updates.store import ClientVectorStore, StorageOptions

CLIENTS, ACTIVE, MEASURED = 100_000, 50, 40
RULES = {rule.__name__: rule for rule in (FedVARP, MIFA, StaleVRE, Forecast)}


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


def direct(stored: ClientVectorStore) -> float:
    """Milliseconds of sum d h by a pass over all that is stored."""
    begun = time.perf_counter()
    total = torch.zeros(stored.none.shape[1])
    for _, rows in stored.batches(1000):
        total += rows.sum(0) / CLIENTS
    return 1000 * (time.perf_counter() - begun)


def resident() -> int:
    """The most bytes of memory that this process has held at a time."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(rule: AggregationRule, parameters: int, marks: list[int]) -> list[str]:
    """At each mark of clients seen: milliseconds a round, of the direct sum, MiB stored, bytes a client, peak MiB."""
    begin, weights = resident(), torch.zeros(parameters)
    state = rule.start(CLIENTS, weights)
    expected = ExpectedResiduals.start(CLIENTS) if isinstance(rule, Forecast) else None
    rows: list[str] = []
    spent: list[float] = []
    for round in range(1, max(marks) // ACTIVE + 1):
        view, updates = view_of(round), updates_of(round, parameters)
        begun = time.perf_counter()
        if expected is not None:
            expected.observe(updates, state.stored, round)
        weights, state = rule.aggregate(weights, updates, view, state)
        spent.append(1000 * (time.perf_counter() - begun))
        if round * ACTIVE in marks:
            stored, held = state.stored.nbytes, resident() - begin
            times = f"{statistics.median(spent[-MEASURED:]):.1f} | {direct(state.stored):.1f}"
            each = stored / (round * ACTIVE)
            rows.append(f"{times} | {stored / 2**20:.0f} | {each:,.0f} | {held / 2**20:.0f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=int, default=2000)
    parser.add_argument("--where", default="device")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rule", choices=RULES)
    options = parser.parse_args()
    keep = StorageOptions(options.where, options.precision)
    marks = [1_000, 10_000, 100_000]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"CPU; {versions}; {options.parameters} parameters; {keep}")
    columns = "ms | direct ms | stored MiB | bytes a client | peak MiB"
    print("| aggregation |", " | ".join(f"{mark:,} seen: {columns}" for mark in marks), "|")
    print("|---|" + "---|" * (5 * len(marks)))
    for rule in RULES if options.rule is None else [options.rule]:
        if options.rule is None:  # each in a process of its own, whose memory is its alone
            command = [sys.executable, __file__, "--rule", rule, *sys.argv[1:]]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        else:
            print(f"| {rule} | {' | '.join(measure(RULES[rule](keep=keep), options.parameters, marks))} |", flush=True)


if __name__ == "__main__":
    main()
