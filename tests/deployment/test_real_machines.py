"""The commands for real machines, each in a folder with the files that its machine would have."""

import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from digits import assert_same_weights, events, module, simulated, weights_of
from traces import clean, needs_flower, running

import mmfl
from conftest import wait_for
from mmfl.deployment.machines import free_port

__all__ = ["clean"]
MMFL = (sys.executable, "-m", "mmfl")
WRAPPED = '{name="wrapped",allocation="full",aggregation={name="momentum",inner="stalevr"}}'


def machine(folder: Path, *files: Path) -> Path:
    """A folder with the app and some files."""
    folder.mkdir()
    module(folder)
    for file in files:
        shutil.copy(file, folder)
    return folder


@contextmanager
def started(place: Path, command: str) -> Iterator[None]:
    """A command that runs until Ctrl-C; its output is in the file `output`."""
    with (place / "output").open("w") as output:
        process = subprocess.Popen([*MMFL, *command.split()], cwd=place, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        ended = process.wait(600)
    assert ended == 130, (place / "output").read_text()


def read_when_printed(path: Path, pattern: str) -> str:
    """What a file says, once it does."""
    return wait_for(lambda: re.search(pattern, path.read_text() if path.exists() else ""))[1]


@needs_flower
@pytest.mark.long
def test_commands_for_real_machines_train_over_registered_nodes_as_a_simulation_does(clean, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLCONFIGDIR", matplotlib.get_cachedir())  # to find all fonts again takes a while
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    make = ["keys", "make", "keys", "--server", "127.0.0.1", "--nodes", "2", "--clients", "4"]
    subprocess.run([*MMFL, *make], cwd=tmp_path, check=True)
    keys = tmp_path / "keys"
    server = machine(tmp_path / "server")
    shutil.copytree(keys, server / "keys", ignore=shutil.ignore_patterns("ca.key", "node-*.key"))
    nodes = [machine(tmp_path / f"node-{k}", keys / "ca.crt", keys / f"node-{k}.key") for k in range(2)]
    port, control = free_port(), free_port()
    node = f"node app.py --server 127.0.0.1:{port} --root-certificates ca.crt"
    with (
        started(server, f"link 127.0.0.1:{port} --keys keys --control-port {control}"),
        started(nodes[0], f"{node} --key node-0.key --clients 0,1"),
        started(nodes[1], f"{node} --key node-1.key --clients 2-3"),
    ):
        for place in nodes:
            read_when_printed(place / "output", r"connected to \S+ as node (\d+)")
        listening = re.findall(r"(flower-superlink|proxy\.py) .*--port (\d+)", "\n".join(running(clean).values()))
        assert {name: int(number) for name, number in listening} == {"proxy.py": port, "flower-superlink": control}
        printed = read_when_printed(server / "output", r"mmfl (deploy .*)").replace("APP.py", "app.py")
        command = f"{printed} --clients 4 --rounds 2 --rate 1 --out run --set clip=0 --set gather=600"
        command += f" --set method={WRAPPED}"
        ended = subprocess.run([*MMFL, *command.split()], cwd=server, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stdout + ended.stderr

    run, expected = mmfl.load(server / "run").runs[0], simulated(tomllib.loads(f"it={WRAPPED}")["it"], 2, 1.0)
    assert_same_weights(weights_of(server / "run"), expected.weights)
    pd.testing.assert_frame_equal(run.accuracy, expected.accuracy)
    assert [task.active for record in run.records for task in record.tasks.values()] == [4] * 4
    assert run.faults.empty
    joined = [event["node"] for event in events(server / "run") if event["kind"] == "joined"]
    assert sorted(joined) == ["node-0", "node-1"]  # by the names of their keys

    left = {
        place.name: sorted({each.name for each in place.iterdir()} - {"__pycache__"}) for place in (server, nodes[0])
    }
    assert left == {
        "server": ["app.py", "keys", "link-state", "logs", "output", "run"],
        "node-0": ["app.py", "ca.crt", "logs", "node-0.key", "output"],
    }
    assert not (tmp_path / "home").exists()
