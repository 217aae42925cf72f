"""Deployments over real nodes on loopback, through the front door, and with everything that can go wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from digits import assert_same_weights, events, module, simulated, weights_of
from traces import Heard, clean, needs_flower, running

import mmfl
from mmfl.deployment.loopback import LocalDeployment
from mmfl.runs.directory import RunDirectory
from mmfl.runs.status import RunEnd

__all__ = ["clean"]
HERE = Path(__file__).parent


@needs_flower
@pytest.mark.long
def test_the_command_line_deploys_over_a_node_with_a_key_and_gives_the_simulations_weights(clean, tmp_path):
    place = tmp_path / "run"
    command = [sys.executable, "-m", "mmfl", "deploy", str(module(tmp_path)), "--local", "1", "--clients", "4"]
    command += ["--secure", "--method", "mmfl-stalevr", "--rounds", "2", "--rate", "0.5"]
    command += ["--set", "gather=600", "--set", "clip=0"]
    ended = subprocess.run([*command, "--out", str(place)], capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "round 2/2  mmfl-stalevr: linear 0." in ended.stdout
    expected = simulated("mmfl-stalevr", 2, 0.5)
    assert_same_weights(weights_of(place), expected.weights)
    run = mmfl.load(place).runs[0]
    assert [r.drawn for r in run.records] == [r.drawn for r in expected.records]
    assert run.faults.empty
    assert {event["kind"] for event in events(place)} - {"waiting"} == {"joined"}  # the machine may be slow


class ServerKilledError(Exception):
    """Nobody waits until Flower notices."""


def kill_server(folder: Path) -> None:
    for number, command in running(folder).items():
        if "flwr-serverapp" in command:
            os.kill(number, signal.SIGKILL)
    raise ServerKilledError


@needs_flower
@pytest.mark.long
def test_a_run_survives_whatever_nodes_do_and_the_loss_of_its_server(clean, tmp_path, monkeypatch):
    orders = tmp_path / "orders"
    orders.mkdir()
    monkeypatch.setenv("MMFL_TROUBLES", str(orders))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    plan = {
        1: {0: "nan", 1: "garbage", 2: "nan"},
        2: {0: "silent", 1: "silent", 2: "nan"},  # the first one's node is killed, the second one's answers too late
    }
    (orders / "hold-3").touch()  # no server begins round 3 before it is lost
    for round, kinds in plan.items():
        for client, kind in kinds.items():
            (orders / f"{client}.{round}").write_text(kind)
    settings = {"clients": 4, "method": "full", "rounds": 3, "rate": 1.0, "gather": 0.0, "least": 3, "clip": 0}
    RunDirectory.create(tmp_path / "run", {"source": "deployment", "settings": settings})
    worker = (sys.executable, str(HERE / "troubled.py"))
    with LocalDeployment(module(tmp_path), tmp_path / "run", worker=worker, server="troubled:app") as local:
        local.start([[0], [1], [2]])
        (first, second, _), lost_ids = local.nodes, []

        def lose_nodes():
            local.check()
            if (orders / "0.2.silent").exists() and not lost_ids:
                lost_ids.append(first.id)
                first.supernode.kill()
                (orders / f"lost-{first.id}").touch()
            if (orders / "1.2.silent").exists():
                (orders / f"lost-{second.id}").touch()

        troubles = Heard({1: lambda: local.join([3]), 2: lambda: kill_server(clean)})
        with pytest.raises(ServerKilledError):
            local.submit(settings).follow(troubles, lose_nodes)
        (orders / "go-on").touch()
        (orders / f"lost-{second.id}").unlink()
        (orders / "hold-3").unlink()
        everyone = settings | {"gather": 600.0}
        assert local.submit(everyone, resume=True).follow(troubles, local.check) == RunEnd("finished")
    run = mmfl.load(tmp_path / "run").runs[0]
    assert [record.round for record in run.records] == [1, 2, 3]
    told = [event for event in events(tmp_path / "run") if event["kind"] not in ("joined", "waiting")]

    def kinds(round: int) -> list[str]:
        return sorted(event["kind"] for event in told if event["round"] == round)

    lost = [event for event in told if event.get("node") == str(lost_ids[0])]
    assert kinds(1) == ["garbage", "rejected", "rejected"]
    assert kinds(2).count("rejected") == 1
    assert (lost[0]["round"], lost[0]["kind"]) in [(2, "late"), (2, "failed")]  # Flower may notice by itself
    assert [event["kind"] for event in told if event.get("node") == str(second.id)] == ["garbage", "late"]
    assert troubles.records[0].faults == {"garbage": 1, "rejected": 2}
    seen: dict[int, set[int]] = {}
    for record in troubles.records:  # a round without a checkpoint when the server was lost is there twice
        seen.setdefault(record.round, {i for clients, _ in record.drawn.values() for i in clients})
    assert seen[1] == {0, 1, 2}
    assert seen[2] in [{0, 1, 2}, {0, 1, 2, 3}]  # the fourth one's node joins
    assert seen[3] == {0, 1, 2, 3}  # the first one's node has come back, the second one's after its silence
    assert run.accuracy.iloc[-1].min() > 0.3


@needs_flower
@pytest.mark.slow
def test_a_node_killed_between_the_stages_of_secure_aggregation_is_in_the_sum_and_missing_later(
    clean, tmp_path, monkeypatch
):
    orders = tmp_path / "orders"
    orders.mkdir()
    monkeypatch.setenv("MMFL_TROUBLES", str(orders))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    (orders / "0.open").write_text("silent")
    secure = {"clip": 100.0, "threshold": 0.6}
    settings = {"clients": 4, "method": "full", "rounds": 2, "rate": 1.0, "gather": 600.0, "clip": 0}
    settings["secure_aggregation"] = secure
    RunDirectory.create(tmp_path / "run", {"source": "deployment", "settings": settings})
    worker = (sys.executable, str(HERE / "troubled.py"))
    with LocalDeployment(module(tmp_path), tmp_path / "run", worker=worker, server="troubled:app") as local:
        local.start([[0], [1], [2, 3]])
        first = local.nodes[0]

        def lose_node():
            local.check()
            if (orders / "0.open.silent").exists():
                first.supernode.kill()
                (orders / f"lost-{first.id}").touch()

        assert local.submit(settings).follow(Heard(), lose_node) == RunEnd("finished")
    run = mmfl.load(tmp_path / "run").runs[0]
    assert [record.tasks["linear"].active for record in run.records] == [4, 3]
    assert not any(event["kind"] == "unsummed" for event in events(tmp_path / "run"))
    expected = simulated("full", 2, 1.0, departures=[2, 0, 0, 0])
    assert_same_weights(weights_of(tmp_path / "run"), expected.weights)


@needs_flower
@pytest.mark.slow
def test_a_hundred_rounds_of_random_kills_are_finished(clean, tmp_path):
    rng = np.random.default_rng(0)
    settings = {"clients": 4, "method": "fedvarp", "rounds": 100, "rate": 0.7, "timeout": 15.0, "gather": 10.0}
    RunDirectory.create(tmp_path / "run", {"source": "deployment", "settings": settings})
    with LocalDeployment(module(tmp_path), tmp_path / "run") as local:
        local.start([[0], [1], [2], [3]])
        killed = []

        def kill_something():
            client = int(rng.integers(4))
            kind = str(rng.choice(["worker", "node", "node", "server"]))
            killed.append(kind)
            if kind == "worker":
                local.nodes[client].worker.kill()
            elif kind == "node":
                local.nodes[client].supernode.kill()
            else:
                kill_server(clean)

        due = {int(t): kill_something for t in np.flatnonzero(rng.random(100) < 0.15)}
        troubles, resume, ended = Heard(due), False, None
        while ended is None:
            try:
                ended = local.submit(settings, resume).follow(troubles, local.check)
            except ServerKilledError:
                resume = True
        assert ended == RunEnd("finished")
        assert set(killed) == {"worker", "node", "server"}
    run = mmfl.load(tmp_path / "run").runs[0]
    assert [record.round for record in run.records] == list(range(1, 101))
    assert run.faults.sum().sum() > 0
    assert run.participation.to_numpy().min() > 0
    assert run.accuracy.iloc[-1].min() > 0.8
    print(killed, run.faults.sum().to_dict(), run.accuracy.iloc[-1].to_dict())
