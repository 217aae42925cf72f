"""Deployments over real nodes on loopback, through the front door, and with everything that can go wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from digits import events, module, simulated, weights_of
from traces import clean, needs_flower

import mmfl
from mmfl.experiment import Listener
from mmfl.flower.local import Local
from mmfl.flower.processes import wait_until
from mmfl.flower.submission import Ended
from mmfl.run import RunDirectory

__all__ = ["clean"]
HERE = Path(__file__).parent


@needs_flower
@pytest.mark.long
def test_the_command_line_deploys_over_nodes_with_keys_and_gives_the_simulations_weights(clean, tmp_path):
    place = tmp_path / "run"
    command = [sys.executable, "-m", "mmfl", "deploy", str(module(tmp_path)), "--local", "2", "--clients", "4"]
    command += ["--secure", "--method", "mmfl-stalevr", "--rounds", "3", "--rate", "0.5", "--out", str(place)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "round 3/3  mmfl-stalevr: linear 0." in ended.stdout
    expected = simulated("mmfl-stalevr", 3, 0.5)
    for mine, theirs in zip(weights_of(place), expected.weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    run = mmfl.load(place).runs[0]
    assert [r["drawn"] for r in run.records] == [r["drawn"] for r in expected.records]
    assert run.faults.empty
    assert {event["kind"] for event in events(place)} == {"joined"}


class ServerKilledError(Exception):
    """Nobody waits until Flower notices."""


class Troubles(Listener):
    """Does something after some rounds."""

    def __init__(self, plan: dict):
        self.plan, self.records = plan, []

    def round(self, records):
        self.records += records
        for action in self.plan.pop(records[0]["round"], ()):
            action()


def serving(folder: Path) -> list[int]:
    """Process numbers of the server's program."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"TMPDIR={folder}".encode() in (place / "environ").read_bytes()
            if mine and b"flwr-serverapp" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@needs_flower
@pytest.mark.long
def test_a_run_survives_whatever_nodes_do_and_the_loss_of_its_server(clean, tmp_path):
    orders = tmp_path / "orders"
    orders.mkdir()
    worker = (sys.executable, str(HERE / "troubled.py"), str(orders))
    settings = {"clients": 4, "method": "full", "rounds": 7, "rate": 1.0, "timeout": 10.0, "gather": 8.0}
    RunDirectory.create(tmp_path / "run", {"source": "deployment", "settings": settings})
    with Local(module(tmp_path), tmp_path / "run", worker=worker) as local:
        local.start([[0], [1], [2]])

        def order(client: int, kind: str):
            return lambda: (orders / str(client)).write_text(kind)

        def kill_server():
            for number in serving(clean):
                os.kill(number, signal.SIGKILL)
            raise ServerKilledError

        plan = {
            1: [order(0, "nan"), order(1, "garbage"), order(2, "shape"), lambda: local.join([3])],
            2: [order(0, "norm"), order(1, "task")],
            3: [local.nodes[0].supernode.kill],
            4: [order(1, "slow")],
            5: [lambda: local.join([0]), kill_server],
        }
        troubles, submitted = Troubles(plan), local.submit(settings)
        with pytest.raises(ServerKilledError):
            submitted.follow(troubles, 7, local.check)
        again = local.nodes[-1]
        wait_until(lambda: again.id is not None, again.supernode, 60, "it connected")
        assert local.submit(settings, resume=True).follow(troubles, 7, local.check) == Ended("finished")
    run = mmfl.load(tmp_path / "run").runs[0]
    assert [record["round"] for record in run.records] == list(range(1, 8))
    told = events(tmp_path / "run")

    def kinds(round: int) -> list[str]:
        return sorted(event["kind"] for event in told if event["round"] == round and event["kind"] != "joined")

    assert kinds(2) == ["garbage", "rejected", "rejected"]
    assert kinds(3) == ["garbage", "rejected"]
    assert "late" in kinds(4)  # its node was killed
    assert "late" in kinds(5) + kinds(6)
    assert run.faults.loc[2].to_dict().items() >= {"garbage": 1, "rejected": 2}.items()
    seen = [{i for clients, _ in record["drawn"].values() for i in clients} for record in run.records]
    assert seen[0] == {0, 1, 2}
    assert 0 not in seen[4]
    assert 0 in seen[5] | seen[6]  # on its new node
    assert 3 in set().union(*seen)
    assert run.accuracy.iloc[-1].min() > 0.3


@needs_flower
@pytest.mark.slow
def test_a_hundred_rounds_of_random_kills_are_finished(clean, tmp_path):
    rng = np.random.default_rng(0)
    settings = {"clients": 4, "method": "fedvarp", "rounds": 100, "rate": 0.7, "timeout": 15.0, "gather": 10.0}
    RunDirectory.create(tmp_path / "run", {"source": "deployment", "settings": settings})
    with Local(module(tmp_path), tmp_path / "run") as local:
        local.start([[0], [1], [2], [3]])
        living = dict(enumerate(local.nodes))
        killed = []

        def kill_something():
            client = int(rng.integers(4))
            kind = str(rng.choice(["worker", "node", "node", "server"]))
            killed.append(kind)
            if kind == "worker":
                living[client].worker.kill()
            elif kind == "node":
                living[client].supernode.kill()
                living[client] = local.join([client])
            else:
                for number in serving(clean):
                    os.kill(number, signal.SIGKILL)
                raise ServerKilledError

        due = {int(t): [kill_something] for t in np.flatnonzero(rng.random(100) < 0.15)}
        troubles, resume, ended = Troubles(due), False, None
        while ended is None:
            try:
                ended = local.submit(settings, resume).follow(troubles, 100, local.check)
            except ServerKilledError:
                resume = True
        assert ended == Ended("finished")
        assert set(killed) == {"worker", "node", "server"}
    run = mmfl.load(tmp_path / "run").runs[0]
    assert [record["round"] for record in run.records] == list(range(1, 101))
    assert run.faults.sum().sum() > 0
    assert run.participation.to_numpy().min() > 0
    assert run.accuracy.iloc[-1].min() > 0.8
    print(killed, run.faults.sum().to_dict(), run.accuracy.iloc[-1].to_dict())
