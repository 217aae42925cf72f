"""What is refused is named as it was typed, at once, and for the reason that holds."""

import sys

import pytest
from rich.console import Console

from mmfl import cli
from mmfl.record import RoundRecord, TaskRecord
from mmfl.report.display import Display
from mmfl.runs.listener import RunInfo
from mmfl.runs.status import RunEnd


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Types a command line in an empty folder: what is printed, and the error."""
    monkeypatch.chdir(tmp_path)

    def refused(*words):
        monkeypatch.setattr(sys, "argv", ["mmfl", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 2
        return capsys.readouterr()

    return refused


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run", "--set", "tasks.digits.lr=fast"], "the embedded default: 'tasks.digits.lr' is 'fast'"),
        (["run", "nothing-like-it"], "configuration 'nothing-like-it' does not exist, as a TOML file or as a preset: "),
        (["run", "mine.toml"], "configuration 'mine.toml' does not exist; expected a TOML file."),
        (["run", "--set", "seeds=[-1]"], "seed is -1; expected a whole number, 0 or above."),
        (["data", "plot", "--seed", "-1"], "--seed is -1; expected 0 or above."),
        (["dashboard", __file__], f"dashboard: folder '{__file__}' is a file; expected one with runs"),
        (["dashboard", "nowhere"], "dashboard: folder 'nowhere' does not exist; expected one with runs"),
        (["dashboard", ".", "--host", "foo"], "dashboard: host 'foo' is not an IPv4 loopback address; expected 127"),
        (["dashboard", ".", "--host", "::1"], "dashboard: host '::1' is not an IPv4 loopback address; expected 127"),
        (["dashboard", ".", "--host", "10.0.0.5"], "dashboard: host '10.0.0.5' can be reached by others"),
        (["runs", __file__], f"'{__file__}' is a file; expected one that holds run directories."),
    ],
)
def test_a_refusal_says_what_where_and_what_was_expected(refused, words, error):
    out, err = refused(*words)
    assert err.startswith(f"error: {error}")
    assert (out, len(err.splitlines())) == ("", 1)


def test_a_run_directory_that_exists_is_refused_before_anything_is_loaded_or_shown(refused, tmp_path, monkeypatch):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").touch()
    monkeypatch.setattr("mmfl.runs.config_schema.Config.experiment", lambda config: pytest.fail("data was loaded"))
    out, err = refused("run", "--out", "used")
    assert (out, "run directory 'used' exists" in err) == ("", True)


def test_progress_says_of_which_round_the_metrics_are(tmp_path):
    with (tmp_path / "shown").open("w") as file:
        display = Display(Console(file=file, width=100))
        display.begin(RunInfo(["full"], [0], ["a"], clients=1, rate=1.0, rounds=4))
        for round, metric in ((1, None), (3, 0.5), (4, None)):
            record = RoundRecord(round, "full", 0, mean=metric, tasks={"a": TaskRecord(metric)})
            display.spoken = -1e9  # the last line was long ago
            display.round([record])
        display.end(RunEnd("finished"))
    first, tested, later = (tmp_path / "shown").read_text().splitlines()
    assert first.startswith("round 1/4  (not tested yet)  ")
    assert tested.startswith("round 3/4  full: a 0.500  ")
    assert "tested" not in tested
    assert later.startswith("round 4/4  full: a 0.500  (tested in round 3)  ")
