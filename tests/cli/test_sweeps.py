"""A sweep through the front door: the command in a process of its own."""

import json
import os
import signal
from pathlib import Path

import pytest
from test_cli import KILLER, final_weights, lines

from prompt import mmfl, together

SWEEP = [
    *("sweep", "--grid", "rate=0.2,0.5", "--grid", "rounds=3,5", "--methods", "random,mmfl-lvr", "--seeds", "2"),
    *("--set", "checkpoint_every=1", "--set", "tasks.digits.epochs=1", "--out", "sweep"),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """A sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("reference")
    done = mmfl(*SWEEP, cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder / "sweep"


def test_a_sweep_says_how_many_runs_there_are_and_ends_with_tables_and_a_report(reference):
    said = (reference.parent / "said.txt").read_text()
    assert "4 points x 2 methods x 2 seeds = 16 runs" in said
    assert "part 2/2: random (rate=0.2, rounds=5) and 3 more in lockstep" in said
    assert said.count("±") == 1 + 8 * 5 + 5
    assert max(map(len, said.splitlines())) <= 120
    assert said.strip().splitlines()[-1].endswith("report: sweep/report.html")
    page = (reference / "report.html").read_text()
    assert "<h1>Sweep over rate, rounds</h1>" in page
    assert page.count('<section id="sweep-') == 5
    assert page.count("<tr>") == 1 + 8 + 1 + 5


def test_json_is_all_that_is_printed_and_the_report_prints_the_same(tmp_path, reference):
    done = mmfl(*SWEEP, "--json", cwd=reference.parent)
    rows = json.loads(done.stdout)
    assert [(row["rate"], row["rounds"], row["method"]) for row in rows[:3]] == [
        *((0.2, 3, "random"), (0.2, 3, "mmfl-lvr")),
        (0.2, 5, "random"),
    ]
    assert {"digits", "digits_spread", "mean", "mean_spread", "worst", "worst_spread"} < set(rows[0])
    assert json.loads(mmfl("report", str(reference), "--json", cwd=tmp_path).stdout) == rows


@pytest.mark.parametrize(
    ("where", "count"),
    [
        pytest.param("mmfl.runs.sweep_directory:write_atomically", 1, id="before the sweep is written down"),
        pytest.param("mmfl.runs.sweep:conduct", 2, id="between two parts"),
        pytest.param("mmfl.training.loop:Dispatch.evaluate", 7, id="in the second part"),
    ],
)
def test_a_sweep_that_was_killed_goes_on_and_ends_with_the_same_bits(tmp_path, reference, where, count):
    killed = mmfl(where, str(count), *SWEEP, cwd=tmp_path, program=KILLER)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = ["resume", "sweep"] if (tmp_path / "sweep" / "sweep.toml").exists() else SWEEP
    resumed = mmfl(*again, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    for part in ("part-1", "part-2"):
        assert final_weights(tmp_path / "sweep" / part) == final_weights(reference / part)
        assert lines(tmp_path / "sweep" / part) == lines(reference / part)


def test_ctrl_c_says_how_to_go_on(tmp_path):
    signals = """
import os, signal, mmfl.training.loop as training
evaluate = training.Dispatch.evaluate
def interrupt(dispatch, round):
    os.kill(os.getpid(), signal.SIGINT)
    return evaluate(dispatch, round)
training.Dispatch.evaluate = interrupt
from mmfl.cli import main; main()
"""
    stopped = mmfl(*SWEEP, cwd=tmp_path, program=signals)
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped; go on with: mmfl resume sweep" in stopped.stdout
    assert "Traceback" not in stopped.stderr


def test_what_fails_is_named_others_finish_and_the_code_is_2(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from mmfl.aggregation import Average\n"
        "class Fails(Average):\n"
        "    def __init__(self, at=0):\n"
        "        super().__init__()\n"
        "        self.at = at\n"
        "    def aggregate(self, weights, updates, view, state):\n"
        "        new, state = super().aggregate(weights, updates, view, state)\n"
        "        return new * float('nan') if view.round == self.at else new, state\n"
    )
    (tmp_path / "experiment.toml").write_text(
        'rounds = 3\nmethods = [{ name = "mine", allocation = "random-clients", aggregation = "mine.Fails" }]\n'
        '[federation]\nclients = 5\n[[tasks]]\nname = "digits"\ndata = "digits"\nmodel = "logistic"\n'
    )
    done = mmfl("sweep", "experiment.toml", "--grid", "methods.mine.aggregation.at=0,2", "--out", "sweep", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: sweep: 1 of 2 points and methods failed; `mmfl resume sweep` tries them again.\n"
    assert "note: mine (at=2) failed: method 'mine (at=2)': Fails.aggregate in round 2 gave weights" in done.stdout
    rows = json.loads(mmfl("report", "sweep", "--json", cwd=tmp_path).stdout)
    assert [row["mean"] is None for row in rows] == [False, True]


def test_several_processes_share_a_sweep(tmp_path, reference):
    done = together(2, *SWEEP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours, theirs = (
        json.loads(mmfl("report", str(path), "--json", cwd=tmp_path).stdout) for path in (tmp_path / "sweep", reference)
    )
    assert [row["rate"] for row in ours] == [row["rate"] for row in theirs]
    assert [row["mean"] for row in ours] == pytest.approx([row["mean"] for row in theirs], abs=0.02)


def test_parts_are_listed_and_belong_to_their_sweep(reference, answer, monkeypatch):
    monkeypatch.chdir(reference.parent)
    code, out, _ = answer("runs", ".", "--json")
    assert code == 0
    assert [run["run"] for run in json.loads(out)] == ["sweep/part-1", "sweep/part-2"]
    code, _, errors = answer("resume", os.path.join("sweep", "part-1"))
    expected = "error: run 'sweep/part-1' is a part of a sweep; resume the sweep: mmfl resume sweep\n"
    assert (code, errors) == (2, expected)
    code, _, errors = answer("report", "sweep", "sweep/part-1")
    assert (code, errors) == (2, "error: report: a sweep has a report of its own; expected its directory alone.\n")


def test_a_sweep_from_python_is_resumed_there(tmp_path, answer):
    (tmp_path / "sweep.toml").write_text('source = "python"\nmethods = []\n[grid]\n[settings]\n')
    code, _, errors = answer("resume", str(tmp_path))
    assert code == 2
    assert "was started from Python: call mmfl.sweep again" in errors


def test_without_plotly_a_sweep_ends_with_pictures(tmp_path):
    program = "import sys; sys.modules['plotly'] = None; from mmfl.cli import main; main()"
    arguments = ["sweep", "quadratic", "--grid", "rate=0.2,0.5", "--rounds", "2", "--seeds", "1", "--out", "sweep"]
    done = mmfl(*arguments, cwd=tmp_path, program=program)
    assert done.returncode == 0, done.stderr
    assert "s; pictures: sweep/report" in done.stdout
    assert [path.name for path in (tmp_path / "sweep" / "report").iterdir()] == ["sweep.png"]
