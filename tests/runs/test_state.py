"""Status and log of a run: what they say while it runs, and after every way in which it can end."""

import json
import logging
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from toy_runs import Heard, train

import prompt
from mmfl.runs import status as state

ENDED = "its process has ended without a word"


def log(path) -> list[str]:
    """The lines of the log without their times."""
    return [line.split("  ", 1)[1] for line in (path / "log.txt").read_text().splitlines()]


def test_a_run_says_that_it_runs_and_that_it_finished(tmp_path):
    seen = []
    train(tmp_path / "run", Heard(3, lambda info: seen.append(state.read(tmp_path / "run"))))
    during, after = seen[0], state.read(tmp_path / "run")
    assert (during.condition, during.round, during.rounds, during.pid) == ("running", 3, 6, os.getpid())
    assert (after.condition, after.round, after.reason) == ("finished", 6, "")
    assert during.began == after.began <= during.updated <= after.updated
    began, *checkpoints, finished = log(tmp_path / "run")
    assert began.startswith("began: random; 6 rounds x 1 seed; process")
    assert checkpoints == [f"checkpoint after round {t}" for t in (2, 4, 6)]
    assert finished == "finished: 6 rounds"


def test_a_stopped_run_says_so_and_its_log_goes_on_when_it_is_resumed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Heard(3, Mock(side_effect=KeyboardInterrupt)))
    stopped = state.read(tmp_path / "run")
    assert (stopped.condition, stopped.round) == ("stopped", 3)
    assert log(tmp_path / "run")[-1] == "stopped after round 3; `mmfl resume` goes on from here"
    train(tmp_path / "run", resume=True)
    assert state.read(tmp_path / "run").began == stopped.began
    assert state.read(tmp_path / "run").condition == "finished"
    assert any(line.startswith("resumed after round 2: random") for line in log(tmp_path / "run"))


def test_a_failed_run_gives_its_reason_on_one_line(tmp_path):
    with pytest.raises(ValueError, match="first"):
        train(tmp_path / "run", Heard(4, Mock(side_effect=ValueError("first\nsecond"))))
    failed = state.read(tmp_path / "run")
    assert (failed.condition, failed.round, failed.reason) == ("failed", 4, "ValueError: first second")
    assert log(tmp_path / "run")[-1] == "failed after round 4: ValueError: first second"


def test_a_killed_run_is_lost_even_if_its_number_is_taken_and_its_lock_keeps_nobody_from_resuming_it(tmp_path):
    program = (
        "import os, sys; sys.path.append('..'); from toy_runs import Heard, train\n"
        "train(sys.argv[1], Heard(2, lambda info: os.kill(os.getpid(), 9)))"
    )
    killed = prompt.mmfl(str(tmp_path / "run"), cwd=Path(__file__).parent, program=program)
    assert killed.returncode == -9, killed.stderr
    lost = state.read(tmp_path / "run")
    assert (lost.condition, lost.round, lost.reason) == ("lost", 2, ENDED)
    told = json.loads((tmp_path / "run" / "state.json").read_text())
    for change, condition in (
        ({"pid": os.getpid()}, "lost"),  # this process is another one
        ({"host": "elsewhere"}, "running"),
        ({"condition": "finished"}, "finished"),
    ):
        (tmp_path / "run" / "state.json").write_text(json.dumps(told | change))
        assert state.read(tmp_path / "run").condition == condition
    assert (tmp_path / "run" / "lock").exists()
    assert len(train(tmp_path / "run", resume=True).records) == 6
    assert not (tmp_path / "run" / "lock").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"condition": "running"}', '{"condition": 3, "extra": 1}'])
def test_a_state_that_cannot_be_read_is_none(tmp_path, content):
    (tmp_path / "state.json").write_text(content)
    assert state.read(tmp_path) is None


def test_warnings_of_the_package_are_noted_on_one_line_while_the_run_lasts(tmp_path, caplog):
    logger = logging.getLogger("mmfl.somewhere")
    train(tmp_path / "run", Heard(1, lambda info: logger.warning("slow\nbecause of %s", "this")))
    logger.warning("after the run")
    assert "warning: slow because of this" in log(tmp_path / "run")
    assert not any("after the run" in line for line in log(tmp_path / "run"))
    assert len(caplog.records) == 2


def test_where_state_and_log_cannot_be_written_the_run_goes_on(tmp_path):
    def obstruct(info):
        for name in ("state.json", "log.txt"):
            (tmp_path / "run" / name).unlink()
            (tmp_path / "run" / name).mkdir()

    run = train(tmp_path / "run", Heard(2, obstruct))
    assert len(run.records) == 6


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(None)
    assert list(tmp_path.iterdir()) == []
