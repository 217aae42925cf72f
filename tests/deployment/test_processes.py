"""Deployments as processes: an echo over real nodes, and that nothing is left of it, whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from traces import Heard, clean, needs_flower, running

from conftest import refused, wait_for
from mmfl.deployment import submission
from mmfl.deployment.child_processes import ChildProcesses, wait_until
from mmfl.deployment.loopback import LocalDeployment
from mmfl.deployment.machines import MAX_MESSAGE_BYTES
from mmfl.deployment.programs import check_module, write_app
from mmfl.deployment.submission import RunWatcher
from mmfl.runs.status import RunEnd

ECHO = Path(__file__).with_name("echo.py")
WORKER = (sys.executable, str(ECHO))
APP = "deployed:app"
__all__ = ["clean"]


@needs_flower
@pytest.mark.long
def test_echo_goes_on_after_a_worker_was_killed_stops_when_asked_and_fails_when_its_server_crashes(
    clean, tmp_path, monkeypatch
):
    local = LocalDeployment(ECHO, tmp_path, secure=True, worker=WORKER, server=APP)
    with local:
        local.start([[0], [1]])
        submitted = local.submit({"nodes": 2, "rounds": 50})
        first = local.nodes[0].worker

        def then():
            first.kill()
            submitted.watcher.request_stop()

        heard = Heard({1: then})
        assert submitted.follow(heard, local.check) == RunEnd("stopped")
        assert local.nodes[0].worker is not first
        assert local.nodes[0].worker.alive
        monkeypatch.setattr(submission, "_SECONDS_BEFORE_QUERY", 1.0)  # only the SuperLink knows of a crash
        crashed = local.submit({"nodes": 2, "rounds": 1, "crash": True}).follow(check=local.check)
        assert crashed.condition == "failed"
        assert "told to crash" in crashed.reason
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert heard.ended == RunEnd("stopped")
    assert heard.rounds == [record["round"] for record in records]
    assert [record["same"] for record in records] == [2] * len(records)
    assert {record["max_bytes"] for record in records} == {str(MAX_MESSAGE_BYTES)}  # of the proxy
    assert not local.processes.folder.exists()


@needs_flower
def test_kill_9_of_its_owner_leaves_nothing_of_a_deployment(clean, tmp_path):
    script = f"""
        from pathlib import Path
        from mmfl.deployment.loopback import LocalDeployment
        with LocalDeployment(Path({str(ECHO)!r}), Path({str(tmp_path)!r}), worker={WORKER!r}, server={APP!r}) as local:
            local.start([[0]])
            local.submit({{"nodes": 1, "rounds": 100}}).follow()
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    names = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr-serverapp", "echo.py")
    wait_for(lambda: all(any(name in command for command in running(clean).values()) for name in names))
    owner.kill()
    owner.wait()
    wait_for(lambda: not running(clean))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_their_owner_even_in_sessions_of_their_own(clean, tmp_path, end):
    deaf = tmp_path / "deaf"
    stubborn = f"""
import os, pathlib, signal, time
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(deaf)!r}).touch()
time.sleep(999)
"""
    script = f"""
        import os, subprocess, sys, time
        from pathlib import Path
        from mmfl.deployment import child_processes as processes
        processes._SECONDS_TO_END = 0.2
        with processes.exit_on_termination(), processes.ChildProcesses(Path({str(tmp_path)!r})) as children:
            parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
            children.start("child", [sys.executable, "-c", parent, {stubborn!r}], os.environ)
            print("ready", flush=True)
            time.sleep(999)
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"ready\n"
    wait_for(deaf.exists)
    assert len(running(clean)) == 4  # owner, watchdog, child and the child's child
    owner.send_signal(end)
    owner.wait()
    wait_for(lambda: not running(clean))


def test_the_last_error_of_a_child_is_reported_when_it_ends_too_soon(clean, tmp_path, monkeypatch):
    with ChildProcesses(tmp_path) as processes:
        child = processes.start("talker", ["sh", "-c", "echo one; echo error: no data"], os.environ)
        with refused("talker ended before it could be ready: no data"):
            wait_until(lambda: False, child, "be ready")
        child = processes.start("sleeper", ["sleep", "999"], os.environ)
        with refused("sleeper took more than 0 s to be ready; what it printed is in", "sleeper.log"):
            wait_until(lambda: False, child, "be ready", 0.1)
        monkeypatch.setattr("mmfl.deployment.child_processes._SECONDS_BEFORE_NOTICE", 0.0)
        said = []
        with refused("sleeper took more than"):
            wait_until(lambda: False, child, "be ready", 0.2, said.append)
        assert [text.partition(";")[0] for text in said] == ["sleeper takes long to be ready"]
        with refused("'no-such-program' cannot be started: No such file"):
            processes.start("nothing", ["no-such-program"], os.environ)


@needs_flower
def test_the_client_app_brings_the_workers_answer_and_says_when_there_is_none(clean, tmp_path):
    from mmfl.deployment.client_app import ask_worker

    with ChildProcesses(tmp_path) as processes:
        place = processes.folder / "worker"
        with pytest.raises(ConnectionError, match="cannot be reached"):
            ask_worker(str(place), b"hello", seconds=0.2)
        worker = processes.start("worker", [*WORKER, "--socket", str(place)], os.environ)
        payload = os.urandom(1_000_000)
        assert ask_worker(str(place), payload) == payload
        assert ask_worker(str(place), b"") == b""
        with pytest.raises(ConnectionError, match="ended before it answered"):
            ask_worker(str(place), b"die")
        worker.process.wait()


@needs_flower
def test_the_client_app_imports_neither_torch_nor_mmfl(tmp_path):
    app = write_app(tmp_path, ECHO, tmp_path, {}, False, "deployed:app")
    code = "import sys, client_app; print([name for name in ('torch', 'mmfl', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=app, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_module_that_is_none_is_refused(tmp_path):
    (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "app.txt").write_text("")
    wrong = {"none.py": "does not exist", "wrong.py": "line 2)", "app.txt": "not a Python"}
    for name, words in wrong.items():
        with refused(name, words):
            check_module(tmp_path / name)


def test_a_run_watcher_returns_every_record_once_though_the_file_is_cut_short_or_written_anew(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    whole = {"method": "random", "seed": 0, "tasks": {}, "clients": 2, "cost": {}}
    lines = [json.dumps({"round": t, **whole, "seconds": t}) + "\n" for t in range(6)]
    metrics.write_text("".join(lines[:4]))
    watcher = RunWatcher(tmp_path, {})
    assert watcher.new_records() == []
    (tmp_path / "new").write_text("".join(lines[:2]))  # a run that resumes forgets what came after its checkpoint
    (tmp_path / "new").rename(metrics)
    assert watcher.new_records() == []
    with metrics.open("a") as file:
        file.write(lines[2].replace('"seconds": 2', '"seconds": 7') + lines[3][:20])
        file.flush()
        assert [record.round for record in watcher.new_records()] == [2]
        file.write(lines[3][20:].replace('"seconds": 3', '"seconds": 9'))
        file.flush()
        assert [record.round for record in watcher.new_records()] == [3]
    assert watcher.new_records() == []


def test_a_run_watcher_knows_how_a_run_ended_and_forgets_it_before_the_next(tmp_path):
    watcher = RunWatcher(tmp_path, {})
    assert watcher.outcome() is None
    (tmp_path / "ended.json").write_text('{"state": "failed", "mess')
    assert watcher.outcome() is None
    (tmp_path / "ended.json").write_text('{"state": "failed", "message": "no nodes"}')
    assert watcher.outcome() == RunEnd("failed", "no nodes")
    (tmp_path / "ended.json").write_text('{"state": "failed", "message": "no nodes", "run": 7}')
    assert watcher.outcome(7) == RunEnd("failed", "no nodes")
    assert watcher.outcome(8) is None
    watcher.request_stop()
    watcher.clear_outcome()
    assert watcher.outcome() is None
    assert not (tmp_path / "stop").exists()
