"""Backups of a run that is being trained: each can be resumed, to the same bits as the run itself."""

import shutil

import pytest
import torch

import mmfl
from conftest import refused, toy_task
from mmfl.runs import backup, checkpoint
from mmfl.runs.backup import back_up


def federation():
    return mmfl.Federation([toy_task("a"), toy_task("b", classes=3)], clients=6)


def train(directory, rounds=6, resume=False, listeners=()):
    options = {"device": "cpu", "checkpoint_every": 2, "engine": "sequential", "listeners": listeners}
    return mmfl.train(federation(), "mmfl-stalevre", rounds, 0.5, directory=directory, resume=resume, **options)


class BacksUp(mmfl.Listener):
    """Takes a backup in the middle of every round."""

    def __init__(self, run, folder):
        self.run, self.folder = run, folder

    def round(self, records):
        back_up(self.run, self.folder / f"after-{records[0].round}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return train(folder / "run", listeners=[BacksUp(folder / "run", folder)]), folder


@pytest.mark.parametrize("round", [1, 3, 4, 5])
def test_a_backup_of_a_running_run_is_resumed_to_the_same_bits(whole, round, tmp_path):
    run, folder = whole
    copy = tmp_path / "copy"
    shutil.copytree(folder / f"after-{round}", copy)
    assert not (copy / "lock").exists()
    resumed = train(copy, resume=True)
    assert all(torch.equal(*pair) for pair in zip(resumed.weights, run.weights, strict=True))
    assert [record.drawn for record in resumed.records] == [record.drawn for record in run.records]


def test_a_backup_in_the_middle_of_a_checkpoint_has_the_one_before(tmp_path, monkeypatch):
    write, rounds = checkpoint.write_arrays, []

    def then_back_up(path, arrays):
        written = write(path, arrays)
        if path.stem == "round-000004" and not rounds:
            rounds.append(back_up(tmp_path / "run", tmp_path / "copy"))
        return written

    monkeypatch.setattr(checkpoint, "write_arrays", then_back_up)
    run = train(tmp_path / "run")
    assert rounds == [2]
    resumed = train(tmp_path / "copy", resume=True)
    assert all(torch.equal(*pair) for pair in zip(resumed.weights, run.weights, strict=True))


def test_a_checkpoint_that_is_removed_meanwhile_is_no_mistake(whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(whole[1] / "run", run)
    copy2, removed = shutil.copy2, []

    def copy(source, target):
        if not removed and source.name.startswith("round-000004"):
            removed.append([file.unlink() for file in source.parent.glob("round-000004*")])
        return copy2(source, target)

    monkeypatch.setattr(backup.shutil, "copy2", copy)
    assert back_up(run, tmp_path / "copy") == 6
    assert removed


def test_what_is_no_run_and_places_that_are_taken_are_refused(whole, tmp_path, answer):
    run = str(whole[1] / "run")
    for arguments, words in [
        ((str(tmp_path), str(tmp_path / "to")), "is not a run directory"),
        ((run, run), "exists"),
        ((run, "/proc/backup"), "cannot be"),
    ]:
        code, _, err = answer("backup", *arguments)
        assert (code, len(err.splitlines())) == (2, 1)
        assert words in err
    code, out, _ = answer("backup", run, str(tmp_path / "deep" / "to"))
    assert (code, "round 6" in out) == (0, True)
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    for file in (damaged / "checkpoint").iterdir():
        file.write_bytes(b"x")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch, refused("no checkpoint in"):
        patch.setattr(backup, "_PAUSE_SECONDS", 0)
        back_up(damaged, tmp_path / "other")
    assert not (tmp_path / "other").exists()
