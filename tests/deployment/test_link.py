"""A link that is killed, in a run and between runs: nodes and runs go on by themselves."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from digits import assert_same_weights, events, module, simulated, weights_of
from traces import Heard, clean, needs_flower, running

from conftest import refused, wait_for
from mmfl.deployment import submission
from mmfl.deployment.loopback import LocalDeployment
from mmfl.deployment.machines import free_port, listens
from mmfl.deployment.security import make_keys
from mmfl.deployment.submission import RunWatcher, ServerLost, Submission
from mmfl.errors import UserError
from mmfl.runs.status import RunEnd

ECHO = Path(__file__).with_name("echo.py")
MMFL = (sys.executable, "-m", "mmfl")
__all__ = ["clean"]


@needs_flower
@pytest.mark.long
def test_a_superlink_killed_in_a_run_and_between_runs_ends_neither_nodes_nor_runs(clean, tmp_path):
    worker = (sys.executable, str(ECHO))
    with LocalDeployment(ECHO, tmp_path, secure=True, worker=worker, server="deployed:app") as local:
        local.start([[0]])

        def kill_superlink():
            local.link.supervised[0].child.kill()

        heard = Heard({1: kill_superlink})
        settings = {"nodes": 1, "rounds": 3}
        assert local.submit(settings).follow(heard, local.check) == RunEnd("finished")
        first = local.nodes[0].id
        assert heard.rounds == [1, 2, 3]  # none was lost, nor repeated
        superlink = local.link.supervised[0].child
        kill_superlink()
        wait_for(lambda: local.check() or local.link.supervised[0].child is not superlink)
        wait_for(lambda: listens(local.link.control.address))
        assert local.submit(settings).follow(check=local.check) == RunEnd("finished")
        assert local.nodes[0].id == first
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["same"] for record in records] == [1] * 6


@needs_flower
@pytest.mark.slow
def test_twelve_nodes_answer_every_round(clean, tmp_path):
    worker = (sys.executable, str(ECHO))
    with LocalDeployment(ECHO, tmp_path, secure=True, worker=worker, server="deployed:app") as local:
        local.start([[k] for k in range(12)])
        heard = Heard()
        assert local.submit({"nodes": 12, "rounds": 3}).follow(heard, local.check) == RunEnd("finished")
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["same"] for record in records] == [12, 12, 12]


def started(place: Path, command: str) -> subprocess.Popen:
    with (place / "output").open("a") as output:
        return subprocess.Popen([*MMFL, *command.split()], cwd=place, stdout=output, stderr=subprocess.STDOUT)


@needs_flower
@pytest.mark.slow
@pytest.mark.parametrize("idle", [False, True], ids=["in a run", "in idleness"])
def test_a_link_that_is_killed_and_started_again_finds_its_nodes_and_runs(clean, tmp_path, idle):
    keys = make_keys(tmp_path / "keys", ["127.0.0.1"], ["0-3"])
    places = {name: tmp_path / name for name in ("server", "node")}
    for place in places.values():
        place.mkdir()
        module(place)
    port, control = free_port(), free_port()
    link = f"link 127.0.0.1:{port} --keys {keys.folder} --control-port {control}"
    secure = f"--root-certificates {keys.authority}"
    deploy = f"deploy app.py --server 127.0.0.1:{control} {secure} --clients 4 --rounds 5 --rate 1 --method full"
    deploy += " --out run --set gather=600"
    metrics = places["server"] / "run" / "metrics.jsonl"
    processes = [started(places["server"], link)]
    try:
        node = f"node app.py --clients 0-3 --server 127.0.0.1:{port} {secure} --key {keys.node_key(0)}"
        processes.append(started(places["node"], node))
        wait_for(lambda: "connected to" in (places["node"] / "output").read_text(), 600)
        if not idle:
            run = started(places["server"], deploy)
            wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 2, 600)
        processes[0].kill()
        processes[0].wait()
        wait_for(lambda: not any("flower-superlink" in each for each in running(clean).values()))
        processes[0] = started(places["server"], link)
        if idle:
            wait_for(lambda: (places["server"] / "output").read_text().count("runs are started") == 2, 600)
            run = started(places["server"], deploy)
        assert run.wait(1200) == 0, (places["server"] / "output").read_text()
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait(600)
    assert_same_weights(weights_of(places["server"] / "run"), simulated("full", 5, 1.0).weights)
    assert {event["kind"] for event in events(places["server"] / "run")} <= {"joined", "left", "waiting"}
    ids = {event["node"] for event in events(places["server"] / "run") if event["kind"] == "joined"}
    assert len(ids) == 1
    assert re.search(r"superlink\.sqlite$", "\n".join(map(str, (places["server"] / "link-state").iterdir())), re.M)
    assert os.stat(places["server"] / "link-state").st_mode & 0o777 == 0o700


# --- a run whose server process is lost ---


class Control:
    """A SuperLink that knows how its runs ended; of the first, or of all of them, that their server was lost."""

    def __init__(self, home, ends):
        self.home, self.ends, self.runs, self.address = home, ends, 0, "127.0.0.1:1"

    def start_run(self, app):
        self.runs += 1
        return self.runs

    def show_run(self, run):
        return self.ends(run)


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Starts a run at such a SuperLink."""
    monkeypatch.setattr(submission, "_SECONDS_BEFORE_QUERY", 0.0)
    (tmp_path / "config.toml").write_text('source = "deployment"\n')

    def start(ends):
        control = Control(tmp_path, ends)
        return Submission.start(control, ECHO, tmp_path, {"rounds": 2})

    return start


LOST = {"status": "finished:failed", "status-details": "No heartbeat received from the task"}


def test_a_run_whose_server_is_lost_after_new_rounds_is_resumed(submitted, tmp_path):
    line = {"round": 1, "method": "echo", "seed": 0, "tasks": {}, "clients": 1, "cost": {}, "seconds": 1}

    def ends(run):
        if run == 1:
            (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            return {} if not heard.records else LOST
        (tmp_path / "ended.json").write_text('{"state": "finished", "message": "", "run": 2}')
        return {}

    heard = Heard()
    assert submitted(ends).follow(heard) == RunEnd("finished")
    assert (heard.rounds, heard.ended) == ([1], RunEnd("finished"))


def test_a_run_whose_server_is_lost_without_a_new_round_has_failed(submitted):
    run = submitted(lambda run: LOST)
    assert run.follow() == ServerLost("failed", "No heartbeat received from the task")
    assert run.control.runs == 1


def test_a_superlink_that_is_silent_is_waited_for_but_not_for_ever(submitted, monkeypatch, caplog):
    def silent(run):
        raise UserError("asking after run 1: no SuperLink answers.")

    monkeypatch.setattr(submission, "_SECONDS_OF_SILENCE", 0.3)
    with refused("no SuperLink has answered at 127.0.0.1:1", "start `mmfl link` again", "mmfl resume"):
        submitted(silent).follow()
    assert sum("It is waited for" in text for text in caplog.messages) == 1


def test_a_server_that_flower_ends_leaves_no_outcome(tmp_path):
    from mmfl.deployment.server_app import record_outcome

    def work():
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        record_outcome(tmp_path, work)
    assert RunWatcher(tmp_path, {}).outcome() is None
