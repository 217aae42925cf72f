"""How long the dashboard takes with many runs: made here, as `mmfl run` would write them, and asked for over HTTP.

    python benchmarks/dashboard.py [runs] [rounds]
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import tomli_w

from mmfl.dashboard.server import Server

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


def seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def main(runs: int = 200, rounds: int = 1000) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(runs):
            make_run(folder / f"run-{seed:03d}", seed, rounds)
        size = sum(path.stat().st_size for path in folder.glob("*/metrics.jsonl"))
        print(f"{runs} runs of {rounds} rounds, {size / 1e6:.0f} MB\n\n| what | ms | kB |\n|---|---|---|")
        with Server(folder) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            measure(server, folder, min(10, runs))
            server.shutdown()


def measure(server: Server, folder: Path, several: int) -> None:
    marks: dict[str, str] = {}

    def ask(question: str, ids: list[int] | None = None) -> int:
        query = urlencode([("run", f"run-{id:03d}") for id in ids or ()])
        address = f"{server.url}api/{question}?{query}"
        with urlopen(Request(address)) as reply:
            marks[address] = reply.headers["ETag"]
            return len(reply.read())

    def show(what: str, act: Callable[[], int]) -> None:
        begun = time.perf_counter()
        size = act()
        print(f"| {what} | {1000 * (time.perf_counter() - begun):.0f} | {size / 1000:.0f} |")

    ids = list(range(several))
    show("list, first time", lambda: ask("runs"))
    show("list, again", lambda: ask("runs"))
    show("figures of one run, first time", lambda: ask("figures", [len(ids)]))
    show(f"figures of {several} runs, first time", lambda: ask("figures", ids))
    show(f"figures of {several} runs, again", lambda: ask("figures", ids))
    with (folder / "run-000" / "metrics.jsonl").open("a") as file:
        rng = np.random.default_rng(0)
        file.write(json.dumps(record(10**6, METHODS[0], 0, np.full(3, 0.9), rng)) + "\n")
    show("list, after a round of one run", lambda: ask("runs"))
    show(f"figures of {several} runs, after a round of one", lambda: ask("figures", ids))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
