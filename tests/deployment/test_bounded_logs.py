"""Logs of processes, and events of a run, stay within bounds whatever is written to them."""

import json
import sys

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from conftest import wait_for
from mmfl.deployment.bounded_logs import BoundedLogs
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.roster import Events
from mmfl.runs import status
from mmfl.runs.events import read_events

WRITES = """
import sys, time
for n in range(2000):
    print(f"line {n:06d}", "x" * 100, flush=True)
while True:  # a line may be lost while a log is moved
    print("end", flush=True)
    time.sleep(0.1)
"""


def test_the_log_of_a_running_process_is_moved_and_it_goes_on_writing(tmp_path):
    with ChildProcesses(tmp_path / "logs") as processes, BoundedLogs(processes.logs, most=20_000, seconds=0.01):
        child = processes.start("writer", [sys.executable, "-c", WRITES], {})
        wait_for(lambda: b"end" in child.log.read_bytes() or b"end" in previous(child).read_bytes())
        wait_for(lambda: child.log.stat().st_size <= 20_000)
        assert b"\0" not in child.log.read_bytes()  # no hole where the old lines were
        assert "line" in previous(child).read_text()


def previous(child):
    path = child.log.with_name(f"{child.log.name}.1")
    path.touch()
    return path


def test_events_and_log_of_a_run_are_kept_in_two_files_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr("mmfl.deployment.roster.MAX_LOG_BYTES", 2000)
    monkeypatch.setattr(status, "MAX_LOG_BYTES", 2000)
    events, writer = Events(tmp_path / "events.jsonl"), status.StatusWriter(tmp_path, 9)
    for n in range(200):
        events.add("late", n, detail="no answer")
        writer.note(f"note {n}")
    assert {"events.jsonl.1", "log.txt.1"} <= {path.name for path in tmp_path.iterdir()}
    assert all(path.stat().st_size < 2200 for path in tmp_path.iterdir())
    shown = [int(event.node) for event in read_events(tmp_path)]
    assert shown == list(range(200 - len(shown), 200))
    assert len(shown) > 10
    lines = (tmp_path / "events.jsonl.1").read_text().splitlines()
    assert all(json.loads(line)["kind"] == "late" for line in lines)
