"""What completes, in the shells themselves, and that nobody waits for it."""

import shutil
import subprocess
import sys
from typing import get_args

import pytest
from terminal import UNDECIDED, Terminal

from mmfl.cli import completion
from mmfl.cli.completion import names_in
from mmfl.data import SOURCES
from mmfl.deployment.settings import DeploymentSettings
from mmfl.engine.precision import Precision
from mmfl.engine.trainer import Mode
from mmfl.methods import METHODS
from mmfl.papers import CATALOGUE
from mmfl.report.exports import FORMATS
from mmfl.runs.config_schema import Config
from mmfl.runs.config_sections import SECTIONS
from mmfl.runs.run import WEIGHTS
from mmfl.trackers import TRACKERS
from prompt import PROGRAM

HEAVY = ("torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "flwr")


@pytest.fixture
def folder(tmp_path):
    """A folder to complete in: a configuration here and one below, a run, and a folder that is none."""
    for name in (
        "mine.toml",
        "below/other.toml",
        "below/app.py",
        "swept/sweep.toml",
        "runs/first/config.toml",
        "runs/later/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "mine.toml").write_text('[[tasks]]\nname = "voices"\n[[tasks]]\nname = "faces"\n')
    return tmp_path


@pytest.fixture
def completed(answer, folder, monkeypatch):
    """The candidates for a line, typed in the folder."""
    monkeypatch.chdir(folder)

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_MMFL_COMPLETE", "complete_lines")
        monkeypatch.setenv("_MMFL_LINE", line)
        code, out, errors = answer()
        assert (code, errors) == (0, "")
        return [reply.split("\t")[0] for reply in out.splitlines() if reply]

    return complete


def in_new_process(program, *arguments, **options):
    """What became of a program in a process that has imported nothing before."""
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("mmfl res", ["resume"]),
        ("mmfl data ", ["plot"]),
        ("mmfl run --see", ["--seeds"]),
        ("mmfl run lvr-", ["lvr-3tasks", "lvr-5tasks"]),
        ("mmfl run m", ["mfa-faces", "mfa-synthetic", "mine.toml"]),
        ("mmfl data plot below/", ["below/other.toml"]),
        ("mmfl compare --methods mmfl-st", ["mmfl-stalevr", "mmfl-stalevre"]),
        ("mmfl compare --methods full,mmfl-stalevr,mmfl-st", ["full,mmfl-stalevr,mmfl-stalevre"]),
        ("mmfl resume runs/", ["runs/first", "runs/later/"]),
        ("mmfl report runs/first --export c", ["csv"]),
        ("mmfl report runs/first --export csv,p", ["csv,png", "csv,parquet"]),
        ("mmfl export runs/first --weights b", ["best"]),
        ("mmfl dashboard r", ["runs/"]),
        ("mmfl runs runs/", ["runs/first/", "runs/later/"]),
        ("mmfl reproduce mfa-fig1 table1-", ["table1-3tasks", "table1-5tasks", "table1-costs"]),
        ("mmfl reproduce --precision ", ["float32", "tf32", "bfloat16"]),
        ("mmfl resume x --device ", ["cpu", "cuda"]),
        ("mmfl run --track t", ["tensorboard"]),
        ("mmfl run --set rou", ["rounds="]),
        ("mmfl run --set fed", ["federation."]),
        ("mmfl run --set federation.c", ["federation.clients=", "federation.capacity="]),
        ("mmfl run --set tasks.", ["tasks.digits.", "tasks.digits-linear.", "tasks.synthetic."]),
        ("mmfl run mine.toml --rounds 3 --set tasks.", ["tasks.voices.", "tasks.faces."]),
        ("mmfl run --set tasks.faces.l", ["tasks.faces.lr=", "tasks.faces.lr_steps=", "tasks.faces.loss="]),
        ("mmfl run missing.toml --set tasks.", []),
        ("mmfl run --set rounds=", []),
        ("mmfl run --set method=mmfl-l", ["method=mmfl-lvr"]),
        ("mmfl run --set engine=s", ["engine=sequential"]),
        ("mmfl run --set tasks.digits.data=fa", ["tasks.digits.data=fashion-mnist", "tasks.digits.data=faces"]),
        ("mmfl sweep mine.toml --grid tasks.", ["tasks.voices.", "tasks.faces."]),
        ("mmfl sweep --grid rat", ["rate="]),
        ("mmfl sweep --methods full,fedst", ["full,fedstale"]),
        ("mmfl resume sw", ["swept"]),
        ("mmfl deploy below/", ["below/app.py"]),
        ("mmfl deploy below/app.py --set gat", ["gather="]),
        ("mmfl deploy below/app.py --method fedf", ["fedfair"]),
    ],
)
def test_a_line_is_completed(completed, line, replies):
    assert completed(line) == replies


def test_a_run_is_offered_before_anything_is_typed(completed):
    assert "runs/first" in completed("mmfl resume ")


@pytest.mark.parametrize(
    ("room", "table", "names"),
    [
        ("methods.py", "METHODS", METHODS),
        ("data", "SOURCES", SOURCES),
        ("trackers", "TRACKERS", TRACKERS),
        ("report", "FORMATS", FORMATS),
        ("runs", "WEIGHTS", WEIGHTS),
        ("engine", "Precision", get_args(Precision)),
        ("engine", "Mode", get_args(Mode)),
        ("deployment", "DeploymentSettings", DeploymentSettings.model_fields),
        *(("runs", model.__name__, model.model_fields) for model in (Config, *SECTIONS.values())),
    ],
)
def test_names_read_from_the_source_are_those_of_the_tables(room, table, names):
    assert names_in(room, table) == list(names)
    assert completion.reproductions() == sorted(CATALOGUE)


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (["node", "--help"], {}),
        (["--show-completion"], {}),
        (["runs", "."], {}),
        ([], {"_MMFL_COMPLETE": "complete_lines", "_MMFL_LINE": "mmfl compare --methods "}),
        ([], {"_MMFL_COMPLETE": "complete_lines", "_MMFL_LINE": "mmfl run --set tasks."}),
    ],
)
def test_nothing_heavy_is_imported_to_answer_a_question_of_the_shell(tmp_path, arguments, env):
    report = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    done = in_new_process(report + PROGRAM, *arguments, cwd=tmp_path, env={**UNDECIDED, **env})
    imported = done.stderr.splitlines()[-1].split()
    assert "mmfl.cli" in imported
    assert [name for name in HEAVY if name in imported] == []


def test_public_names_come_when_they_are_asked_for(tmp_path):
    program = """
import sys, mmfl
assert "torch" not in sys.modules
assert mmfl.Task is mmfl.federation.task.Task and callable(mmfl.data.digits) and "compare" in dir(mmfl)
from mmfl import *
assert train is mmfl.api.train
mmfl.trian
"""
    done = in_new_process(program, cwd=tmp_path)
    assert "AttributeError: module 'mmfl' has no attribute 'trian'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_installed_script_completes_in_the_shell(folder, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    home, program = folder / "home", folder / "bin" / "mmfl"
    home.mkdir()
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{PROGRAM}\n")
    program.chmod(0o755)
    env = {**UNDECIDED, "HOME": str(home), "PATH": f"{program.parent}:{UNDECIDED['PATH']}", "TERM": "xterm"}
    env.pop("XDG_CONFIG_HOME", None)
    installed = subprocess.run(
        [shell, "-c", "mmfl --install-completion; true"], env=env, cwd=folder, capture_output=True, text=True
    )
    assert f"{shell} completion installed" in installed.stdout, installed.stderr
    with Terminal(shell, "-i", cwd=folder, env=env) as terminal:
        for typed, shown in (
            ("echo rea''dy\n", "ready"),
            ("mmfl compare lvr-3\t", "lvr-3tasks "),
            ("--methods random,mmfl-lv\t", "random,mmfl-lvr "),
            ("--set rou\t", "rounds="),
            ("5 --set method=mmfl-lv\t", "method=mmfl-lvr "),
            ("--out be\t", "below/"),
            ("\x15mmfl resume runs/f\t", "runs/first "),
            ("\x15mmfl report runs/first --o\t", "--out "),
            ("\x15mmfl run be\t", "below/"),
            ("o\t", "ther.toml "),
        ):
            terminal.type(typed)
            terminal.wait_for(shown)
