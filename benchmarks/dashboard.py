"""How long the dashboard takes with many runs: made here, as `mmfl run` would write them, and asked for over HTTP.

python benchmarks/dashboard.py [runs] [rounds]
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import tomli_w

TASKS, CLIENTS, DRAWN = ("digits", "fashion", "synthetic"), 100, 12
METHODS = ("random", "mmfl-lvr", "mmfl-stalevre", "full")


def make_run(path: Path, seed: int, rounds: int) -> None:
    """A run directory with records like those of a training."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    method = METHODS[seed % len(METHODS)]
    config = {"methods": [method], "seeds": [seed], "rounds": rounds, "rate": 0.1 + seed / 1000}
    config["tasks"] = [{"name": name, "data": "digits", "model": "logistic", "lr": 0.1} for name in TASKS]
    (path / "config.toml").write_text(tomli_w.dumps(config))
    speed, noise = rng.uniform(0.005, 0.03, len(TASKS)), rng.normal(0, 0.01, (rounds, len(TASKS)))
    metrics = 0.9 * (1 - np.exp(-np.outer(np.arange(1, rounds + 1), speed))) + 0.05 + noise
    with (path / "metrics.jsonl").open("w") as file:
        for t in range(1, rounds + 1):
            file.write(json.dumps(record(t, method, seed, metrics[t - 1], rng)) + "\n")
    state = {"condition": "finished", "round": rounds, "rounds": rounds, "began": 1.7e9 + seed, "updated": 1.7e9 + seed}
    (path / "state.json").write_text(json.dumps(state | {"pid": 1, "host": "elsewhere"}))


def record(t: int, method: str, seed: int, metrics: np.ndarray, rng: np.random.Generator) -> dict:
    steps = rng.gamma(9, 1 / 9, len(TASKS))
    tasks = {
        name: {
            "metric": float(metrics[s]),
            "loss": float(2.3 * (1 - metrics[s])),
            "training_loss": float(2.2 * (1 - metrics[s])),
            "active": DRAWN // len(TASKS),
            "rejected": 0,
            "step_size": float(steps[s]),
            "step_size_variance": float(1 / 9),
            "loss_variance": float(steps[s] ** 2),
            "update_variance": None,
        }
        for s, name in enumerate(TASKS)
    }
    drawn = np.split(rng.choice(CLIENTS, DRAWN, replace=False), len(TASKS))
    cost = {"trainings": DRAWN, "processors": DRAWN, "forward_passes": 0, "bytes_up": 10**6, "bytes_down": 10**6}
    return {
        "round": t,
        "method": method,
        "seed": seed,
        "mean": float(metrics.mean()),
        "worst": float(metrics.min()),
        "tasks": tasks,
        "clients": CLIENTS,
        "clients_seen": CLIENTS,
        "cost": cost | {"stored_bytes": 0},
        "drawn": {name: [clients.tolist(), [1] * len(clients)] for name, clients in zip(TASKS, drawn, strict=True)},
        "seconds": 0.1,
    }


def main(runs: int = 200, rounds: int = 1000) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(runs):
            make_run(folder / f"run-{seed:03d}", seed, rounds)
        size = sum(path.stat().st_size for path in folder.glob("*/metrics.jsonl"))
        print(f"{runs} runs of {rounds} rounds, {size / 1e6:.0f} MB\n\n| what | ms | kB |\n|---|---|---|")
        command = [sys.executable, "-m", "mmfl", "dashboard", str(folder), "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout
                measure(Browser(process.stdout.readline().split()[3]), folder, runs, rounds)
            finally:
                process.send_signal(signal.SIGINT)


class Browser:
    """Asks as the page does, and counts what is sent."""

    def __init__(self, url: str):
        self.url, self.received = url, 0

    def ask(self, question: str, ids: Sequence[int] = (), **more: str) -> Any:
        query = urlencode([("run", f"run-{id:03d}") for id in ids] + list(more.items()))
        with urlopen(f"{self.url}api/{question}?{query}") as reply:
            body = reply.read()
        self.received += len(body)
        return json.loads(body)

    def figures(self, ids: Sequence[int], most: int = 100) -> None:
        for name in self.ask("figures", ids)["names"][:most]:
            self.ask("figure", ids, name=name)

    def show(self, what: str, act: Callable[[], object]) -> None:
        begun, self.received = time.perf_counter(), 0
        act()
        print(f"| {what} | {1000 * (time.perf_counter() - begun):.0f} | {self.received / 1000:.0f} |", flush=True)


def measure(browser: Browser, folder: Path, runs: int, rounds: int) -> None:
    several = min(10, runs - 1)
    ids = range(several)
    browser.show("list, first time", lambda: browser.ask("runs"))
    browser.show("list, again", lambda: browser.ask("runs"))
    browser.show("one run: all figures", lambda: browser.figures([several]))
    browser.show(f"{several} runs: first two figures", lambda: browser.figures(ids, 2))
    browser.show(f"{several} runs: the other figures", lambda: browser.figures(ids))
    browser.show(f"{several} runs: all figures, again", lambda: browser.figures(ids))
    browser.show(f"{several} runs: tables", lambda: browser.ask("table", ids))
    with (folder / "run-000" / "metrics.jsonl").open("a") as file:
        last = record(rounds + 1, METHODS[0], 0, np.full(len(TASKS), 0.9), np.random.default_rng(0))
        file.write(json.dumps(last) + "\n")
    browser.show("list, after a round of one run", lambda: browser.ask("runs"))
    browser.show(f"{several} runs: first two figures, after a round of one", lambda: browser.figures(ids, 2))
    browser.show("all selected: first two figures", lambda: browser.figures(range(runs), 2))
    browser.show("all selected: the other figures", lambda: browser.figures(range(runs)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
