"""Through the front door: the command in a process of its own."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import wait_for
from prompt import PROGRAM, mmfl, started

ROOT = Path(__file__).parents[2]
SMALL = ["--set", "tasks.digits.epochs=1", "--rounds", "6", "--seeds", "1"]


def final_weights(run: Path) -> bytes:
    return sorted((run / "checkpoint").glob("*.safetensors"))[-1].read_bytes()


def lines(run: Path) -> list[tuple]:
    """Everything recorded but the time it took."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{**record, "seconds": None} for record in records]


def test_compare_trains_in_plain_lines_and_ends_with_tables_and_a_report(tmp_path):
    done = mmfl("compare", *SMALL, "--methods", "random,full", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "round 6/6" in done.stdout
    assert "of full" in done.stdout
    assert "\x1b" not in done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"[\d.]+ s; report: run/report\.html( \([\d.]+ s\))?", last)
    assert (tmp_path / "run" / "report.html").is_file()


def test_without_plotly_a_run_ends_with_pictures_and_a_report_is_refused(tmp_path):
    program = "import sys; sys.modules['plotly'] = None; from mmfl.cli import main; main()"
    done = mmfl("run", *SMALL, "--out", "run", cwd=tmp_path, program=program)
    assert done.returncode == 0, done.stderr
    assert "s; pictures: run/report" in done.stdout
    pictures = {"overview.png", "accuracy.png", "participation.png", "step_size.png"}
    assert {path.name for path in (tmp_path / "run" / "report").iterdir()} == pictures
    refused = mmfl("report", "run", cwd=tmp_path, program=program)
    assert refused.returncode == 2
    assert refused.stderr == "error: figures in a browser need plotly; install it with: pip install 'mmfl[report]'\n"
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_users_own_module_runs_by_dotted_path_from_anywhere(tmp_path):
    example = str(ROOT / "examples" / "own_module.toml")
    done = mmfl("run", example, "--rounds", "4", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "largest-first" in done.stdout
    assert mmfl("resume", "run", cwd=tmp_path).returncode == 0


def test_a_preset_runs_by_name_and_its_partition_can_be_drawn(tmp_path):
    made = mmfl("run", "quadratic", "--rounds", "3", "--seeds", "2", "--out", "run", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert len(lines(tmp_path / "run")) == 6
    drawn = mmfl("data", "plot", "mfa-synthetic", "--out", "pictures", cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    pictures = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert pictures == ["labels-1-synthetic-a.png", "labels-2-synthetic-b.png", "volumes.png"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("reference")
    done = mmfl(*KILLED, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


KILLED = [
    *("compare", "--methods", "mfa-rr,mmfl-lvr", "--rounds", "9", "--seeds", "2"),
    *("--set", "checkpoint_every=2", "--set", "tasks.digits.epochs=1", "--out", "run"),
]

# Kills its own process, as nothing can catch, when a function is called for the n-th time.
KILLER = """
import os, signal, sys
module, _, name = sys.argv.pop(1).rpartition(":")
count = int(sys.argv.pop(1))
import importlib, mmfl.public
from mmfl.cli import main
owner = importlib.import_module(module)
*path, last = name.split(".")
for step in path:
    owner = getattr(owner, step)
original = getattr(owner, last)
calls = 0
def deadly(*args, **kwargs):
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, last, deadly)
main()
"""


@pytest.mark.parametrize(
    ("where", "count"),
    [
        pytest.param("mmfl.training.loop:Dispatch.measure", 1, id="before the first round ends"),
        pytest.param("mmfl.training.loop:Dispatch.evaluate", 6, id="in the middle of a round"),
        pytest.param("mmfl.runs.checkpoint:write_atomically", 2, id="between the two files of a checkpoint"),
        pytest.param("mmfl.runs.checkpoint:write_arrays", 4, id="before a checkpoint is written"),
        pytest.param("mmfl.runs.directory:os.fsync", 15, id="before metrics or checkpoint reach the disk"),
        pytest.param("pathlib:Path.replace", 10, id="before a checkpoint gets its name"),
    ],
)
def test_resume_after_kill_gives_the_same_bits(tmp_path, reference, where, count):
    killed = mmfl(where, str(count), *KILLED, cwd=tmp_path, program=KILLER)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = mmfl("resume", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert final_weights(tmp_path / "run") == final_weights(reference)
    assert lines(tmp_path / "run") == lines(reference)


def test_ctrl_c_stops_after_the_round_and_the_run_can_be_resumed(tmp_path, reference):
    """No round after the second ends before the signal came."""
    waits = """
import pathlib, time, mmfl.training.loop as training
evaluate = training.Dispatch.evaluate
def wait(dispatch, round):
    while round >= 3 and not pathlib.Path("signalled").exists():
        time.sleep(0.02)
    return evaluate(dispatch, round)
training.Dispatch.evaluate = wait
"""
    metrics = tmp_path / "run" / "metrics.jsonl"
    with started(*KILLED, cwd=tmp_path, program=waits + PROGRAM) as (number, end):
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 8)
        os.kill(number, signal.SIGINT)
        (tmp_path / "signalled").touch()
        stopped = end()
    assert stopped.returncode == 130, stopped.stderr
    assert "mmfl resume run" in stopped.stdout
    assert "Traceback" not in stopped.stderr
    assert mmfl("resume", "run", cwd=tmp_path).returncode == 0
    assert final_weights(tmp_path / "run") == final_weights(reference)
    assert lines(tmp_path / "run") == lines(reference)


def test_a_directory_that_may_not_be_written_is_named(tmp_path, reference, answer, monkeypatch):
    """Of a new run and of one to go on with; root may write everywhere, so the system's refusal is played."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(reference, tmp_path / "run")
    before, opened = sorted(os.listdir("run")), Path.open

    def refuse(path, *arguments, **options):
        if path.name.startswith(".lock."):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    for command, place in ((["run", "--out", "new"], "new"), (["resume", "run"], "run")):
        code, _, errors = answer(*command)
        assert (code, errors) == (2, f"error: run directory '{place}' cannot be written: Permission denied.\n")
    assert sorted(os.listdir("run")) == before


def test_output_that_cannot_be_written_is_one_error(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mmfl", "methods"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device.\n")


def test_resume_says_that_the_newest_checkpoint_is_damaged_and_from_which_round_it_goes_on(tmp_path, reference):
    shutil.copytree(reference, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoint" / "round-000009.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    resumed = mmfl("resume", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    said = " ".join(resumed.stdout.split())
    problem = "damaged checkpoint run/checkpoint/round-000009: the checksum of its arrays does not agree"
    assert f"{problem}; going on from the one before, after round 8" in said
    assert final_weights(tmp_path / "run") == final_weights(reference)
    assert lines(tmp_path / "run") == lines(reference)


def test_resume_refuses_what_python_started_and_what_is_damaged(tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    for name, content, words in (
        ("python", 'source = "python"\n', "was started from Python"),
        ("damaged", "rounds = = 3", "cannot be read"),
        ("foreign", "rounds = 3\n[extra]\nx = 1\n", "unknown key 'extra'"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(content)
        code, _, errors = answer("resume", name)
        assert code == 2
        assert words in errors
