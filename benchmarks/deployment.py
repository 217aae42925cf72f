"""What a round of a deployment costs beside Flower alone, and what a node costs at rest.

    python benchmarks/deployment.py [--nodes 4] [--rounds 6] [--methods random,mmfl-lvr] [--rest 30]

Everything runs on loopback. An echo sends every node a message of the model's size and gets it back; nothing is
trained. `flower` is the echo over Flower's programs as they are: a process that imports Flower for every message, nodes
that look for messages every three seconds. `echo` is the same over mmfl's nodes. A round of mmfl has one such exchange,
or two where the method asks for losses first. With `--rest` it measures the nodes' processes while nothing happens.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from unittest.mock import patch

from mmfl.deployment import loopback, machines, programs
from mmfl.deployment.loopback import LocalDeployment
from mmfl.runs.directory import RunDirectory
from mmfl.runs.layout import METRICS

ECHO = Path(__file__).parent.parent / "tests" / "deployment" / "echo.py"
MODULE = """
import mmfl

def model():
    return mmfl.models.Perceptron(inputs=64, hidden=3333, classes=10)

def tasks():
    return [mmfl.Task("digits", model, mmfl.data.digits(), lr=0.1, epochs=1, batch_size=10)]

def data(task, client):
    digits = mmfl.data.digits()
    rows = slice(50 * client, 50 * client + 50)
    return digits.x[rows], digits.y[rows]
"""
MEGABYTE = 1_000_000


@contextmanager
def flower_alone() -> Iterator[None]:
    """SuperNodes start what they need themselves, and connect to the SuperLink without a proxy."""
    wrapped = programs.supernode

    def start_superlink(processes, address, inner, keys):
        return machines.start_superlink(processes, address, address, keys)

    with (
        patch.object(programs, "supernode", lambda *given: wrapped(*given)[4:]),
        patch.object(programs, "_POLL_SECONDS", "0.1"),
        patch.object(loopback, "start_superlink", start_superlink),
    ):
        yield


def usage(token: str) -> dict[str, tuple[str, float, float]]:
    """The processes of a deployment by number: command line, seconds of processor time, proportional memory in MB."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, StopIteration):
            if token in (place / "environ").read_text():
                ticks = (place / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
                lines = (place / "smaps_rollup").read_text().splitlines()
                memory = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
                processor = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
                found[place.name] = ((place / "cmdline").read_text(), processor, memory)
    return found


def at_rest(folder: Path, nodes: int, seconds: float) -> None:
    """Prints what the processes of each node, and of the link, cost while nothing happens."""
    module = folder / "app.py"
    module.write_text(MODULE)
    with LocalDeployment(module, folder, secure=True) as local:
        local.start([[n] for n in range(nodes)])
        while not all(node.id for node in local.nodes):
            time.sleep(0.1)
        time.sleep(10)
        before, began = usage(local.processes.token), time.monotonic()
        time.sleep(seconds)
        after, waited = usage(local.processes.token), time.monotonic() - began
    print("| at rest | MB | % of a core |\n|---|---|---|")
    for name in [*(f"/node-{k}/" for k in range(nodes)), "flower-superlink", "flower-superexec", "proxy.py"]:
        mine = [
            p for p, (command, *_) in after.items() if name in command and ("/node-" in name or "/node-" not in command)
        ]
        memory = sum(after[p][2] for p in mine)
        processor = 100 * sum(after[p][1] - before[p][1] for p in mine if p in before) / waited
        print(f"| {name.strip('/')} | {memory:.0f} | {processor:.2f} |")


def seconds(folder: Path, echo: bool, nodes: int, settings: dict) -> list[float]:
    """Seconds of every round but the first, in which nodes fetch the app."""
    module = folder / "app.py"
    module.write_text(MODULE)
    directory = folder / "run"
    RunDirectory.create(directory, {"source": "deployment"})
    options = {"worker": (sys.executable, str(ECHO)), "server": "deployed:app"} if echo else {}
    with LocalDeployment(ECHO if echo else module, directory, **options) as local:
        local.start([[n] for n in range(nodes)])
        local.submit(settings).follow(check=local.check)
    records = [json.loads(line) for line in (directory / METRICS).read_text().splitlines()]
    return [record["seconds"] for record in records][1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--methods", default="random,full,mmfl-lvr,mmfl-stalevr")
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--rest", type=float, default=0.0)
    given = parser.parse_args()
    if given.rest:
        with tempfile.TemporaryDirectory() as folder:
            at_rest(Path(folder), given.nodes, given.rest)
        return
    echoes, methods = ["flower", "echo"], list(filter(None, given.methods.split(",")))
    found: dict[str, list[float]] = {name: [] for name in [*echoes, *methods]}
    for _ in range(given.repeats):
        for name in found:
            settings = {"nodes": given.nodes, "bytes": MEGABYTE, "rounds": given.rounds}
            if name not in echoes:
                settings = {"clients": given.nodes, "method": name, "rounds": given.rounds, "rate": given.rate}
                settings["rate"] = 1.0 if name == "full" else given.rate
            alone = flower_alone() if name == "flower" else nullcontext()
            with alone, tempfile.TemporaryDirectory() as folder:
                found[name] += seconds(Path(folder), name in echoes, given.nodes, settings)
    base = statistics.median(found["flower"])
    print("| round of | s (range) | of Flower's echo |\n|---|---|---|")
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"| {name} | {middle:.2f} ({min(times):.2f} to {max(times):.2f}) | {middle / base:.2f}x |")


if __name__ == "__main__":
    main()
