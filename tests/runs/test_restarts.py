"""What `torchrun` starts again goes on with the run that it began, and with no other."""

import json
import os
import socket

import pytest
import torch
from toy_runs import Heard, train

import mmfl
from conftest import refused
from mmfl.runs import checkpoint
from mmfl.runs.lock import Holder, hold
from mmfl.runs.processes import torchrun_job, torchrun_restarts_left
from mmfl.runs.restarts import find_begun
from mmfl.runs.snapshots import Snapshot
from mmfl.updates.world import SINGLE_PROCESS, World


@pytest.fixture(autouse=True)
def job(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job")


@pytest.fixture
def lost(tmp_path):
    """A run of which a process was lost in its third round."""

    def fail(info):
        raise MemoryError

    with pytest.raises(MemoryError):
        train(tmp_path / "run", Heard(3, fail))
    return tmp_path / "run"


def test_the_run_goes_on_from_its_checkpoint_to_the_same_weights(lost, tmp_path):
    heard = Heard()
    again = train(lost, heard)
    assert heard.rounds == [3, 4, 5, 6]
    assert torch.equal(again.weights[0], train(tmp_path / "undisturbed").weights[0])
    assert [record.round for record in mmfl.load(lost).runs[0].records] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("other", ["another job", "none", ""])
def test_another_job_is_refused(lost, monkeypatch, other):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", other)
    with refused(f"run directory '{lost}' exists"):
        train(lost)


def test_another_configuration_is_refused(lost):
    with refused(f"run directory '{lost}' exists"):
        train(lost, rounds=7)


def test_a_run_that_was_begun_without_torchrun_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    train(tmp_path / "run")
    for job in ("", "a job"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
        with refused(f"run directory '{tmp_path / 'run'}' exists"):
            train(tmp_path / "run")


def test_a_job_without_an_id_is_told_by_the_process_that_started_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert torchrun_job().startswith(f"{socket.gethostname()} {os.getppid()} ")
    first, again = train(tmp_path / "run"), train(tmp_path / "run")
    assert torch.equal(first.weights[0], again.weights[0])
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with refused("exists"):
        train(tmp_path / "run")


def test_the_last_run_that_the_job_began_is_found_by_its_configuration(tmp_path, monkeypatch):
    for name in ("1", "2", "3"):
        train(tmp_path / name, rounds=2 if name == "3" else 6)
    (tmp_path / "4").mkdir()
    config = {"source": "python", "methods": ["random"], "seeds": [0], "rounds": 6, "rate": 0.5}
    assert find_begun(tmp_path, config) == tmp_path / "2"
    assert find_begun(tmp_path, config | {"rounds": 7}) is None
    assert find_begun(tmp_path / "nothing", config) is None
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert find_begun(tmp_path, config) is None


def test_a_lock_of_the_same_job_on_another_machine_is_taken_over_and_no_other(tmp_path):
    holder = vars(Holder.current()) | {"host": "elsewhere"}
    (tmp_path / "lock").write_text(json.dumps(holder | {"job": "another job"}))
    with refused("on elsewhere"), hold(tmp_path):
        pass
    (tmp_path / "lock").write_text(json.dumps(holder))
    with hold(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["host"] == socket.gethostname()


@pytest.mark.parametrize(("most", "used", "left"), [("3", "0", 3), ("3", "3", 0), ("0", "0", 0), ("x", "0", 0)])
def test_restarts_that_are_left_are_counted(monkeypatch, most, used, left):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", most)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", used)
    assert torchrun_restarts_left() == left


class OneOfTwo(World):
    """A process of two."""

    size = 2

    def __init__(self, rank: int):
        self.rank = rank


def test_each_of_as_many_processes_has_its_own_choices_again_and_others_those_of_the_first():
    parts = [({"replicas": [], "choices": {"network": way}}, {}) for way in ("vectorised", "sequential")]
    restored = [checkpoint.unpack(parts, Snapshot([]), world) for world in (OneOfTwo(0), OneOfTwo(1), SINGLE_PROCESS)]
    assert [each.choices["network"] for each in restored] == ["vectorised", "sequential", "vectorised"]
