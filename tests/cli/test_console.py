"""What reaches the terminal, a pipe or a program, and how a command ends."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from terminal import COLOURS, UNDECIDED, Terminal

import prompt
from mmfl.record import RoundRecord, TaskRecord
from mmfl.report.display import Display
from mmfl.runs.listener import RunInfo
from mmfl.runs.status import RunEnd
from prompt import PROGRAM

PAGE = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text()
TRAINING = ["run", "quadratic", "--rounds", "3", "--seeds", "2", "--out", "run"]


def shown(*arguments, cwd, **env):
    """What a terminal shows."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    with Terminal(*command, cwd=cwd, env={**UNDECIDED, "TERM": "xterm-256color", **env}) as terminal:
        text = terminal.finish()
        assert terminal.process.returncode == 0, text
    return text


def test_progress_on_a_terminal_is_coloured_unless_no_color_is_set(tmp_path):
    (tmp_path / "plain").mkdir()
    coloured = shown(*TRAINING, cwd=tmp_path)
    plain = shown(*TRAINING, cwd=tmp_path / "plain", NO_COLOR="1", FORCE_COLOR="1")
    assert COLOURS.search(coloured)
    assert coloured.rindex("\x1b[?25h") > coloured.rindex("\x1b[?25l")  # the cursor is shown again
    assert not COLOURS.search(plain)
    assert "copy-a" in plain
    assert "3/3" in plain


def test_a_dumb_terminal_gets_lines_without_escape_codes(tmp_path):
    text = shown(*TRAINING, cwd=tmp_path, TERM="dumb")
    assert "\x1b" not in text
    assert "round 3/3" in text


def test_colours_forced_into_a_pipe_come_without_drawing_over_lines(tmp_path):
    done = prompt.mmfl(*TRAINING, cwd=tmp_path, env={**UNDECIDED, "FORCE_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"\x1b\[[0-9;?]*(.)", done.stdout)) == {"m"}
    assert "round 3/3" in done.stdout


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_installing_completion_is_said_without_colours_too(tmp_path, env):
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert COLOURS.search(shown("--install-completion", "bash", cwd=tmp_path, **home))
    assert "\x1b" not in shown("--install-completion", "bash", cwd=tmp_path, **home, **env)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a finished comparison, in runs/done."""
    path = tmp_path_factory.mktemp("shell")
    done = prompt.mmfl(
        *("compare", "quadratic", "--methods", "random,full", "--rounds", "4", "--seeds", "2", "--quiet"),
        *("--out", "runs/done"),
        cwd=path,
        env=UNDECIDED,
    )
    assert done.returncode == 0, done.stderr
    return path, done.stdout


@pytest.fixture
def answer(answer, folder, monkeypatch):
    """Asks in that folder."""
    monkeypatch.chdir(folder[0])
    return answer


def test_quiet_shows_the_final_table_only(folder):
    lines = [line.strip() for line in folder[1].splitlines() if line.strip()]
    assert lines[0].startswith("final test metric: last tested round, 2 seeds")
    assert not any(word in folder[1] for word in ("round 4/4", "budget", "report.html"))
    assert (folder[0] / "runs/done/report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "documented", "part"),
    [
        (["methods"], "mmfl methods --json", None),
        (["datasets"], "mmfl datasets --json", "data"),
        (["datasets"], "mmfl datasets --json", "presets"),
        (["reproduce", "--list"], "mmfl reproduce --list --json", None),
        (["runs"], "mmfl runs --json", None),
        (["report", "runs/done"], "mmfl report RUN --json", None),
    ],
)
def test_json_is_all_that_is_printed_and_has_the_documented_keys(answer, arguments, documented, part):
    code, out, err = answer(*arguments, "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)[part] if part else json.loads(out)
    row = next(line for line in PAGE.splitlines() if f"`{documented}`" in line)
    keys = re.findall(r"`(\w+)`", row.split("|")[2])
    if arguments == ["datasets"]:
        assert list(json.loads(out)) == [keys[0], keys[3]]
        keys = keys[1:3] if part == "data" else keys[4:]
    keys[1:1] = ["copy-a", "copy-b"] if arguments[0] == "report" else []
    assert rows
    assert all(list(row) == keys for row in rows)


@pytest.mark.parametrize(
    ("arguments", "part", "key"),
    [
        (["methods"], None, "method"),
        (["reproduce", "--list"], None, "id"),
        (["datasets"], "data", "data"),
        (["datasets"], "presets", "preset"),
    ],
)
def test_listings_say_the_same_in_json_and_as_tables(answer, arguments, part, key):
    table, rows = answer(*arguments)[1], json.loads(answer(*arguments, "--json")[1])
    assert [row[key] for row in (rows[part] if part else rows) if f" {row[key]} " not in f" {table}"] == []
    assert "[1, 8, 8]" in table or key != "data"  # which is no markup


def test_a_run_is_listed_with_its_state_and_means(answer, folder):
    (run,) = json.loads(answer("runs", "--json")[1])
    table = {row["method"]: row for row in json.loads(answer("report", "runs/done", "--json")[1])}
    assert run["mean"] == pytest.approx({method: row["mean"] for method, row in table.items()})
    assert (run["run"], run["state"], run["round"], run["rounds"], run["seeds"]) == ("runs/done", "finished", 4, 4, 2)
    listing = answer("runs")[1]
    assert all(word in listing for word in ("runs/done", "finished", "4/4", f"random {run['mean']['random']:.3f}"))
    assert json.loads(answer("runs", "runs/done", "--json")[1]) == [run]


@pytest.mark.parametrize("arguments", [["methods"], ["methods", "--json"], ["--help"], ["runs", "."]])
def test_output_that_nobody_reads_ends_a_command_without_a_word(tmp_path, arguments):
    nobody, end = os.pipe()
    os.close(nobody)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=tmp_path, stdout=end, stderr=subprocess.PIPE, timeout=600
    )
    os.close(end)
    assert (done.returncode, done.stderr) == (1, b"")


BROKEN = f"import mmfl.cli.listings\ndef broken(folder): raise {{}}\nmmfl.cli.listings.list_runs = broken\n{PROGRAM}"


@pytest.mark.parametrize(
    ("program", "code", "word"),
    [
        pytest.param(PROGRAM, 0, "", id="done"),
        pytest.param(BROKEN.format("ZeroDivisionError"), 1, "Traceback", id="unexpected"),
        pytest.param(BROKEN.format("mmfl.errors.UserError('wrong here.')"), 2, "error: wrong here.", id="mistake"),
        pytest.param(BROKEN.format("KeyboardInterrupt"), 130, "", id="Ctrl-C"),
    ],
)
def test_every_way_to_end_has_its_exit_code(tmp_path, program, code, word):
    done = prompt.mmfl("runs", ".", cwd=tmp_path, program=program)
    assert done.returncode == code
    assert word in done.stderr
    assert ("Traceback" in done.stderr) == (code == 1)


def test_a_node_that_is_told_to_end_ends_with_143(tmp_path):
    """Told while it waits to become ready: by itself, so that nothing depends on how long that takes."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    (tmp_path / "app.py").write_text("def tasks(): ...\ndef data(task, client): ...\n")
    told = f"""
import os, signal
import mmfl.cli.machines as commands
class RunningNode:
    def __init__(self, *_, **options): os.kill(os.getpid(), signal.{signal.SIGTERM.name})
commands.RunningNode = RunningNode
{PROGRAM}"""
    done = prompt.mmfl("node", "app.py", "--clients", "0", cwd=tmp_path, program=told)
    assert done.returncode == 143, done.stderr
    assert done.stderr == ""


def test_progress_says_of_which_round_the_metrics_are(tmp_path):
    with (tmp_path / "shown").open("w") as file:
        display = Display(Console(file=file, width=100))
        display.begin(RunInfo(["full"], [0], ["a"], clients=1, rate=1.0, rounds=4))
        for round, metric in ((1, None), (3, 0.5), (4, None)):
            display.spoken = -1e9  # the last line was long ago
            display.round([RoundRecord(round, "full", 0, mean=metric, tasks={"a": TaskRecord(metric)})])
        display.end(RunEnd("finished"))
    first, tested, later = (tmp_path / "shown").read_text().splitlines()
    assert first.startswith("round 1/4  (not tested yet)  ")
    assert tested.startswith("round 3/4  full: a 0.500  ")
    assert "tested" not in tested
    assert later.startswith("round 4/4  full: a 0.500  (tested in round 3)  ")
