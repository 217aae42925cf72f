"""Fingerprints of every named method: hashes of its weights and of what it recorded, on every engine.

A change that should change no result is seen to change none:

    python benchmarks/fingerprints.py > before.json
    ...
    python benchmarks/fingerprints.py | diff before.json -

The bits are those of one machine; on another one, or with another torch, both sides have to be made again. Everything
goes through the package's front doors, so that the same script serves whatever lies behind them. A deployment starts
real nodes for each of its methods; `--without deployed` leaves it out.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import mmfl

ROUNDS = 6
ENGINES = ("vectorised", "sequential", "resumed", "two processes", "deployed")
DEPLOYED = ("mmfl-lvr", "mmfl-stalevr", "scaffold", "fedvarp", "forecast")
APP = """
import mmfl

def tasks():
    digits = mmfl.data.digits()
    return [
        mmfl.Task("linear", mmfl.models.LogisticRegression, digits, lr=0.3, epochs=2),
        mmfl.Task("hidden", mmfl.models.Perceptron, digits, lr=0.3, batch_size=16),
    ]

def data(task, client):
    digits = mmfl.data.digits()
    return digits.x[client::4], digits.y[client::4]
"""


def federation(seed: int) -> mmfl.Federation:
    """Three tasks over eleven clients, some of whom arrive late or leave."""
    digits = mmfl.data.digits()
    small = partial(mmfl.models.SmallCNN, side=8, padding=1, widths=(4, 8), hidden=16)
    tasks = [
        mmfl.Task("linear", mmfl.models.LogisticRegression, digits, lr=0.1, epochs=2),
        mmfl.Task("hidden", mmfl.models.Perceptron, digits, lr=0.1, batch_size=20),
        mmfl.Task("deep", small, digits, lr=0.05, batch_size=20),
    ]
    arrivals, departures = [1] * 9 + [3, 4], [0] * 8 + [5, 0, 0]
    return mmfl.Federation(tasks, 11, capacity="mixed", arrivals=arrivals, departures=departures, seed=seed)


def names() -> list[str]:
    """All named methods, as the command line lists them."""
    listed = subprocess.run([sys.executable, "-m", "mmfl", "methods", "--json"], capture_output=True, check=True)
    return [method["method"] for method in json.loads(listed.stdout)]


def without_times(value: Any) -> Any:
    """A record without what a clock measured."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if "seconds" not in key}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def digest(weights: list[torch.Tensor], records: list[dict[str, Any]]) -> str:
    """One hash of a run's weights and one of its records."""
    bits = hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in weights))
    told = hashlib.sha256(json.dumps(without_times(records), sort_keys=True).encode())
    return f"{bits.hexdigest()[:16]} {told.hexdigest()[:16]}"


def records_of(directory: Path, method: str) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["method"] == method]


def simulate(directory: Path, engine: str = "vectorised", resume: bool = False) -> dict[str, str]:
    """Every method in lockstep."""
    options = {"directory": directory, "checkpoint_every": 3, "engine": engine, "resume": resume, "device": "cpu"}
    found = mmfl.compare(federation, names(), ROUNDS, 0.4, [3], **options)
    return {run.method: digest(list(run.weights), records_of(directory, run.method)) for run in found}


def resumed(directory: Path) -> dict[str, str]:
    """A run that lost what came after its third round."""
    simulate(directory)
    for file in (directory / "checkpoint").glob(f"round-{ROUNDS:06}*"):
        file.unlink()
    return simulate(directory, resume=True)


def two_processes(directory: Path) -> dict[str, str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, __file__, "--simulate", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads((directory / "fingerprints.json").read_text())


def deployed(directory: Path) -> dict[str, str]:
    """Some methods over two real nodes on loopback."""
    directory.mkdir()
    (directory / "app.py").write_text(APP)
    found = {}
    for method in DEPLOYED:
        place = directory / method
        options = f"--local 2 --clients 4 --method {method} --rounds 2 --rate 0.5 --set gather=600"
        command = [sys.executable, "-m", "mmfl", "deploy", str(directory / "app.py"), *options.split()]
        subprocess.run([*command, "--out", str(place)], capture_output=True, check=True)
        arrays = load_file(sorted((place / "checkpoint").glob("round-*.safetensors"))[-1])
        weights = [arrays[name] for name in sorted(arrays) if ".weights." in name]
        found[method] = digest(weights, records_of(place, method))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", nargs="*", choices=ENGINES, default=[], help="engines to leave out")
    parser.add_argument("--simulate", type=Path, help=argparse.SUPPRESS)  # one of two processes
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.simulate:
        found = simulate(given.simulate)
        if os.environ["RANK"] == "0":
            (given.simulate / "fingerprints.json").write_text(json.dumps(found))
        return
    makers = {
        "vectorised": simulate,
        "sequential": lambda place: simulate(place, "sequential"),
        "resumed": resumed,
        "two processes": two_processes,
        "deployed": deployed,
    }
    with tempfile.TemporaryDirectory() as folder:
        every = {
            name: make(Path(folder) / name.replace(" ", "-"))
            for name, make in makers.items()
            if name not in given.without
        }
    print(json.dumps(every, indent=1))


if __name__ == "__main__":
    main()
