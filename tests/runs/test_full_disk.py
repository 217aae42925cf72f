"""A disk that is full: one error, and with room again the run ends as if nothing had happened."""

import json
import os
import subprocess

import pytest
from toy_runs import train

import mmfl
from conftest import refused
from prompt import PROGRAM
from prompt import mmfl as command

RUN = ["run", "quadratic", "--rounds", "6", "--seeds", "1", "--set", "checkpoint_every=2", "--out", "disk/run"]
LIMITED = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)\n" + PROGRAM
AGAIN = "Once it can, `mmfl resume disk/run` goes on from its last checkpoint (in Python: resume=True)."


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that nothing disturbed, in a folder `disk`."""
    folder = tmp_path_factory.mktemp("reference")
    done = command(*RUN, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "disk" / "run"


def results(run):
    """The final weights, and everything recorded but the time it took."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    weights = sorted((run / "checkpoint").glob("*.safetensors"))[-1].read_bytes()
    return weights, [record | {"seconds": None} for record in records]


def resumed(folder, reference):
    """Resumes the run on a disk that has room again."""
    assert {path.name for path in (folder / "disk" / "run").rglob(".*")} == set()  # no halves of files
    done = command("resume", "disk/run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert results(folder / "disk" / "run") == results(reference)


@pytest.fixture
def disk(tmp_path):
    """A disk of its own, as a function of its size that also changes it."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size: str, *options: str) -> None:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={size}"]), "tmpfs", str(place)])
        if done.returncode:
            pytest.skip("file systems cannot be mounted here")

    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems")
    yield mount
    subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.mark.parametrize("size", ["12k", "28k", "36k"])  # which ends in round 1, 4, or the checkpoint of round 4
def test_a_disk_that_fills_up_ends_the_run_with_one_error_and_it_can_be_resumed(tmp_path, disk, reference, size):
    disk(size)
    full = command(*RUN, cwd=tmp_path)
    assert full.returncode == 2
    problem = "error: run 'disk/run' stopped, because it cannot be written: No space left on device."
    assert full.stderr.splitlines() == [problem, AGAIN]
    if size == "28k":
        assert command("resume", "disk/run", cwd=tmp_path).stderr.splitlines() == [problem, AGAIN]
    disk("100m", "remount")
    resumed(tmp_path, reference)


def test_a_disk_without_room_for_the_report_ends_with_one_error_and_the_run_is_there(tmp_path, disk, reference):
    disk("2m")
    full = command(*RUN, cwd=tmp_path)
    assert full.returncode == 2
    assert full.stderr == "error: report 'disk/run/report.html' cannot be written: No space left on device.\n"
    assert results(tmp_path / "disk" / "run") == results(reference)
    disk("100m", "remount")
    resumed(tmp_path, reference)


def test_a_disk_without_any_room_is_refused_before_the_run_begins(tmp_path, disk):
    disk("4k")
    (tmp_path / "disk" / "filler").write_bytes(b"x" * 4096)
    full = command(*RUN, cwd=tmp_path)
    assert full.returncode == 2
    assert full.stderr == "error: run directory 'disk/run' cannot be written: No space left on device.\n"
    assert [path.name for path in (tmp_path / "disk").rglob("*") if path.is_file()] == ["filler"]


@pytest.mark.parametrize(("most", "every"), [(3000, 2), (2000, 1)])
def test_files_that_may_not_grow_are_told_like_a_full_disk(tmp_path, reference, most, every):
    """The records of round 3 are too long, or the first checkpoint is."""
    changed = [word.replace("every=2", f"every={every}") for word in RUN]
    full = command(str(most), *changed, cwd=tmp_path, program=LIMITED)
    assert full.returncode == 2
    problem = "error: run 'disk/run' stopped, because it cannot be written: File too large."
    assert full.stderr.splitlines() == [problem, AGAIN]
    resumed(tmp_path, reference)


@pytest.mark.parametrize("call", [3, 6, 7])
def test_in_python_a_full_disk_is_a_user_error(tmp_path, monkeypatch, call):
    """Whichever file could not be forced onto the disk."""
    calls, fsync = [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with refused("cannot be written: No space left on device.", "resume=True"):
        train(tmp_path / "run")
    whole = train(tmp_path / "whole")
    again = train(tmp_path / "run", resume=True)
    assert all(a.equal(b) for a, b in zip(whole.weights, again.weights, strict=True))
    assert len(mmfl.load(tmp_path / "run").runs[0].records) == 6
