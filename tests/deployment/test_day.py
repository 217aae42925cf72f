"""An operator's day, through the command line and real processes: start, more nodes, a killed link, a revoked key, a
new task, poison from one node, an upgrade, a backup and what is restored from it."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from digits import MODULE, events
from traces import clean, needs_flower, running

from conftest import wait_for
from mmfl.deployment.machines import free_port

__all__ = ["clean"]
MMFL = (sys.executable, "-m", "mmfl")
UPGRADED = MODULE.replace(
    "    ]\n", '        mmfl.Task("late", mmfl.models.LogisticRegression, digits, lr=0.1, epochs=2),\n    ]\n'
)
POISON = UPGRADED.replace("return digits.x[client::4],", "return 1e30 * digits.x[client::4],")


class Day:
    """The machines of a deployment, each a folder, and the commands that run there."""

    def __init__(self, folder: Path):
        self.folder, self.processes = folder, {}
        self.port, self.control, self.metrics = free_port(), free_port(), free_port()
        (folder / "server").mkdir()
        (folder / "server" / "app.py").write_text(MODULE)
        self.run = folder / "server" / "run"

    def ask(self, *words: str | Path) -> str:
        """A command on the server's machine that ends by itself."""
        done = subprocess.run([*MMFL, *map(str, words)], cwd=self.folder / "server", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, command: str) -> None:
        """A command that runs until it is ended."""
        place = self.folder / (name if name.startswith("node") else "server")
        with (self.folder / f"{name}.out").open("a") as output:
            process = subprocess.Popen([*MMFL, *command.split()], cwd=place, stdout=output, stderr=subprocess.STDOUT)
        self.processes[name] = process

    def end(self, name: str) -> int:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM if name != "run" else signal.SIGINT)
        return process.wait(600)

    def link(self) -> None:
        options = f"--keys {self.folder / 'keys'} --control-port {self.control} --metrics-port {self.metrics}"
        self.start("link", f"link 127.0.0.1:{self.port} {options}")

    def node(self, k: int, module: str = MODULE) -> None:
        """Node k with client k, and with this module."""
        place = self.folder / f"node-{k}"
        place.mkdir(exist_ok=True)
        (place / "app.py").write_text(module)
        keys = f"--root-certificates {self.folder}/keys/ca.crt --key {self.folder}/keys/node-{k}.key"
        self.start(place.name, f"node app.py --clients {k} --server 127.0.0.1:{self.port} {keys}")

    def deploy(self, command: str) -> None:
        self.start("run", command)

    def records(self) -> list[dict]:
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []

    def trained(self, task: str) -> set[int]:
        """Who trained a task in the last round."""
        last = self.records()[-1:]
        return set(last[0]["drawn"].get(task, [[]])[0]) if last else set()

    def until(self, event, seconds: float = 900.0) -> None:
        """Waits until it is so; no command may end meanwhile."""

        def happened() -> bool:
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, f"{ended} ended: " + (self.folder / f"{ended[0]}.out").read_text()[-2000:]
            return bool(event())

        wait_for(happened, seconds)

    def status(self) -> dict:
        return json.loads(self.ask("status", "run", "--json"))

    def saw(self, kind: str, words: str = "") -> bool:
        return any(event["kind"] == kind and words in event.get("detail", "") for event in events(self.run))


@needs_flower
@pytest.mark.slow
def test_the_day_of_an_operator(clean, tmp_path):
    day = Day(tmp_path)
    try:
        spend(day, clean)
    finally:
        for process in day.processes.values():
            process.terminate()
        for process in day.processes.values():
            process.wait(600)


def spend(day: Day, clean: Path) -> None:
    # In the morning: a link, two nodes, a run.
    day.ask("keys", day.folder / "keys", "--server", "127.0.0.1", "--nodes", "4")
    day.link()
    day.node(0)
    day.node(1)
    day.until(lambda: "runs are started" in (day.folder / "link.out").read_text())
    ready = f"http://127.0.0.1:{day.metrics}/readyz"
    assert urllib.request.urlopen(ready, timeout=60).read() == b"ready\n"
    root = f"--root-certificates {day.folder}/keys/ca.crt"
    settings = "--set gather=1 --set timeout=120 --method full"
    day.deploy(
        f"deploy app.py --server 127.0.0.1:{day.control} {root} --clients 4 --rounds 1000 --rate 1 {settings} --out run"
    )
    day.until(lambda: day.trained("linear") == {0, 1})
    assert {"state": "running"}.items() <= day.status().items()

    # More nodes come.
    day.node(2)
    day.node(3)
    day.until(lambda: day.trained("linear") == {0, 1, 2, 3})
    assert day.status()["deployment"]["connected"] == 4

    # The SuperLink is killed, and the run goes on by itself.
    (superlink,) = [pid for pid, line in running(clean).items() if re.search(r"flower-superlink .*--port", line)]
    before = len(day.records())
    subprocess.run(["kill", "-9", str(superlink)], check=True)
    day.until(lambda: len(day.records()) > before + 2 and day.trained("linear") == {0, 1, 2, 3})

    # A task is added; nodes get it as they are restarted with the new module.
    (day.folder / "server" / "app2.py").write_text(UPGRADED)
    day.ask("control", "add-task", "run", "late", "app2.py")
    day.until(lambda: day.saw("control", "task added: late"))
    for k in (0, 1):
        day.end(f"node-{k}")
        day.node(k, UPGRADED)
    day.until(lambda: day.trained("late") == {0, 1} and day.trained("linear") == {0, 1, 2, 3})

    # One node sends what cannot be right; the models stay as they are.
    day.end("node-3")
    day.node(3, POISON)
    day.until(lambda: any((each["kind"], each.get("client")) == ("rejected", "3") for each in events(day.run)))
    rounds = len(day.records())
    day.until(lambda: len(day.records()) > rounds + 1)
    assert day.records()[-1]["tasks"]["linear"]["metric"] > 0.7

    # A backup in the middle of a round, then the server is stopped for an upgrade, and the link with it.
    day.ask("backup", "run", "saved")
    day.ask("control", "stop", "run")
    assert day.processes.pop("run").wait(900) == 130
    day.end("link")

    # The disk is lost; the run is restored and ends on another number of rounds.
    day.run.rename(day.folder / "lost")
    day.ask("backup", "saved", "run")
    saved = len(day.records())
    day.ask("control", "rounds", "run", str(saved + 3))
    day.ask("control", "retire-task", "run", "hidden")
    day.link()
    day.until(lambda: (day.folder / "link.out").read_text().count("runs are started") == 2)
    day.deploy("resume run")
    assert day.processes.pop("run").wait(1800) == 0, (day.folder / "run.out").read_text()[-3000:]
    records = day.records()
    assert [record["round"] for record in records] == list(range(1, saved + 4))
    assert sorted(records[-1]["tasks"]) == ["late", "linear"]
    assert records[-1]["tasks"]["late"]["metric"] > 0.5
    day.ask("export", "run", "--task", "hidden", "--to", "hidden.safetensors")
    assert (day.folder / "server" / "hidden.safetensors").stat().st_size > 0
