"""What a round of a deployment costs beyond Flower itself: mmfl's rounds beside an empty echo over the same nodes.

    python benchmarks/deployment.py [--nodes 4] [--rounds 6] [--methods random,mmfl-lvr]

Everything runs on loopback. The echo sends every node a message of the model's size and gets it back; so does Flower
alone, and nothing is trained. A round of mmfl has one such exchange, or two where the method asks for losses first.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

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
    given = parser.parse_args()
    methods = given.methods.split(",")
    found: dict[str, list[float]] = {name: [] for name in ["echo", *methods]}
    for _ in range(given.repeats):
        for name in found:
            settings = {"nodes": given.nodes, "bytes": MEGABYTE, "rounds": given.rounds}
            if name != "echo":
                settings = {"clients": given.nodes, "method": name, "rounds": given.rounds, "rate": given.rate}
                settings["rate"] = 1.0 if name == "full" else given.rate
            with tempfile.TemporaryDirectory() as folder:
                found[name] += seconds(Path(folder), name == "echo", given.nodes, settings)
    base = statistics.median(found["echo"])
    print("| round of | s (range) | of an echo |\n|---|---|---|")
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"| {name} | {middle:.2f} ({min(times):.2f} to {max(times):.2f}) | {middle / base:.2f}x |")


if __name__ == "__main__":
    main()
