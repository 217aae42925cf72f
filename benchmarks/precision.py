"""Methods that remember updates, with the updates stored in fewer and fewer bits: the accuracy they reach on digits.

60 clients with two of the ten labels each, a tenth of the trainings, 60 rounds, 20 seeds; the accuracy is the mean of
the last ten rounds. Beside the precisions of the package, few bits with stochastic rounding: to one of the two levels
around a number, at random, so that the mean is the number (between the outermost levels).

    python benchmarks/precision.py             # trains, writes precision.json, prints the table (minutes)
    python benchmarks/precision.py --table     # prints the table of precision.json
"""

import argparse
import json
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import mmfl
from mmfl.updates import quantiser
from mmfl.updates.encoding import ENCODINGS, Quantised

DATA = Path(__file__).with_suffix(".json")
METHODS = ("mmfl-stalevr", "fedvarp", "mifa", "forecast")
PARAMETERS, CLIENTS, ROUNDS, RATE, SEEDS, LAST = 4810, 60, 60, 0.1, 20, 10
STOCHASTIC = ", stochastic"

Accuracies = dict[str, dict[str, list[float]]]


class Stochastic(Quantised):
    """Few bits, rounded up or down at random."""

    def encode(self, rows: Tensor) -> Tensor:
        """Quantised as usual, with another choice of levels."""
        with mock.patch.object(quantiser, "_nearest_levels", random_levels):
            return super().encode(rows)


def random_levels(ratios: Tensor, bits: int) -> Tensor:
    """The code of one of the two levels around each number, the nearer one more often."""
    positive = torch.tensor(quantiser.LEVELS[bits])
    levels = torch.cat([-positive.flip(0), positive])
    lower = (torch.searchsorted(levels, ratios.contiguous()) - 1).clamp(0, len(levels) - 2)
    upwards = (ratios - levels[lower]) / (levels[lower + 1] - levels[lower])
    place = lower + (torch.rand(ratios.shape) < upwards)
    return torch.where(place < len(positive), len(positive) - 1 - place, place).to(torch.uint8)


def federation(seed: int) -> mmfl.Federation:
    """Digits over clients with few labels, which makes their updates differ."""
    task = mmfl.Task("digits", mmfl.models.Perceptron, mmfl.data.digits(), lr=0.1, epochs=3)
    return mmfl.Federation([task], clients=CLIENTS, partition=mmfl.partition.labels(0.2), seed=seed)


def accuracy(method: str, precision: str | None, seed: int) -> float:
    """The mean accuracy of the last rounds of a run."""
    torch.manual_seed(seed)
    setting = method if precision is None else {"method": method, "keep": {"precision": precision}}
    run = mmfl.train(federation(seed), setting, ROUNDS, RATE, seed=seed, engine="vectorised")
    return round(float(run.accuracy["digits"].iloc[-LAST:].mean()), 5)


def measure() -> dict[str, Accuracies | dict[str, list[float]]]:
    """The accuracies of all seeds, by method and precision; and of methods without a memory, for comparison."""
    for name, encoding in list(ENCODINGS.items()):
        if isinstance(encoding, Quantised) and encoding.bits in quantiser.LEVELS:
            ENCODINGS[name + STOCHASTIC] = Stochastic(encoding.bits)
    seeds = range(SEEDS)
    stored = {m: {p: [accuracy(m, p, seed) for seed in seeds] for p in ENCODINGS} for m in METHODS}
    others = {method: [accuracy(method, None, seed) for seed in seeds] for method in ("random", "full")}
    return {"stored": stored, "others": others}


def table(stored: Accuracies) -> str:
    """Bytes beside float32; the mean accuracy in float32, and the differences of the others from it, seed by seed."""
    lines = [
        f"| precision | bytes | {' | '.join(f'`{method}`' for method in METHODS)} |",
        "|---|---|" + "---|" * len(METHODS),
    ]
    for precision in stored[METHODS[0]]:
        encoding = ENCODINGS[precision.removesuffix(STOCHASTIC)]
        share = encoding.width(PARAMETERS) * encoding.dtype.itemsize / (4 * PARAMETERS)
        cells = [cell(stored[method], precision) for method in METHODS]
        name = precision if precision.endswith(STOCHASTIC) else f'`"{precision}"`'
        lines.append(f"| {name} | {100 * share:.1f}% | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(accuracies: dict[str, list[float]], precision: str) -> str:
    """Mean and standard error, of the accuracy for float32, and of the difference from that for others."""
    full, these = np.array(accuracies["float32"]), np.array(accuracies[precision])
    values = these if precision == "float32" else these - full
    sign = "" if precision == "float32" else "+"
    return f"{values.mean():{sign}.4f} ± {values.std(ddof=1) / len(values) ** 0.5:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", action="store_true", help="print the table of what is stored")
    if not parser.parse_args().table:
        DATA.write_text(json.dumps(measure(), indent=1) + "\n")
    found = json.loads(DATA.read_text())
    print(table(found["stored"]))
    for method, accuracies in found["others"].items():
        print(f"{method}: {np.mean(accuracies):.4f}")


if __name__ == "__main__":
    main()
