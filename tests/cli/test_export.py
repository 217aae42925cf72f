"""The models of a run directory, written as files by the command line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import made_once
from mmfl.cli.export import load_runs
from mmfl.runs.config import read
from mmfl.runs.layout import CONFIG
from prompt import mmfl

EXPERIMENT = """
rounds = 4
rate = 0.5
seeds = 2
methods = ["random", "full"]
keep_best = true
average = 0.3

[federation]
clients = 6

[[tasks]]
name = "calm"
data = "digits"
model = "logistic"
lr = 0.5

[[tasks]]
name = "wild"
data = "digits"
model = "logistic"
lr = 300.0
"""


def train(folder: Path) -> None:
    (folder / "experiment.toml").write_text(EXPERIMENT)
    done = mmfl("run", "experiment.toml", "--out", "run", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path_factory, monkeypatch):
    """A folder with the directory of a finished run."""
    made = made_once(tmp_path_factory, "exported", train)
    monkeypatch.chdir(made)
    return made


@pytest.mark.parametrize("weights", ["current", "best", "average"])
def test_the_model_of_a_task_method_and_seed_is_written(folder, answer, tmp_path, weights):
    path = tmp_path / "model.safetensors"
    chosen = ["--task", "wild", "--method", "full", "--seed", "1", "--weights", weights]
    code, out, err = answer("export", "run", "--to", str(path), *chosen)
    assert code == 0, err
    assert "task wild of full, seed 1" in " ".join(out.split())
    expected = load_runs(Path("run"))["full", 1].module("wild", weights).state_dict()
    written = load_file(path)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)


def test_the_weights_are_those_of_training(folder):
    """The exported model has the accuracy that was recorded in the last round."""
    from mmfl.runs.results import load

    run, recorded = load_runs(Path("run"))["random", 1], load("run")["random", 1]
    for task in run.federation.tasks:
        with torch.no_grad():
            outputs = run.module(task.name)(task.data.x_test)
        accuracy = float((outputs.argmax(1) == task.data.y_test).float().mean())
        assert accuracy == pytest.approx(recorded.accuracy[task.name].iloc[-1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "full", "--seed", "0"], ["the run has the tasks calm, wild; expected --task"]),
        (["--task", "calm", "--seed", "0"], ["the run has the methods random, full; expected --method"]),
        (["--task", "calm", "--method", "full"], ["the run has the seeds 0, 1; expected --seed"]),
        (["--task", "clam", "--method", "full", "--seed", "0"], ["no task 'clam': did you mean 'calm'?"]),
        (["--task", "calm", "--method", "ful", "--seed", "0"], ["no method 'ful': did you mean 'full'?"]),
        (["--task", "calm", "--method", "full", "--seed", "7"], ["no seed '7': expected one of: 0, 1."]),
        (
            ["--task", "calm", "--method", "full", "--seed", "0", "--weights", "bset"],
            ["unknown weights 'bset': did you mean 'best'?"],
        ),
    ],
)
def test_a_choice_that_is_missing_or_unknown_is_named(folder, answer, tmp_path, arguments, words):
    code, _, err = answer("export", "run", "--to", str(tmp_path / "model.pt"), *arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert all(word in err for word in words), err
    assert len(err.splitlines()) <= 2
    assert not (tmp_path / "model.pt").exists()


def test_an_unknown_ending_is_named(folder, answer):
    chosen = ["--task", "calm", "--method", "full", "--seed", "0"]
    code, _, err = answer("export", "run", "--to", "model.h5", *chosen)
    assert (code, "unknown ending '.h5'" in err) == (2, True)


@pytest.mark.parametrize("source", ["python", "sweep"])
def test_a_run_whose_configuration_has_no_tasks_is_refused(answer, tmp_path, source):
    (tmp_path / CONFIG).write_text(f'source = "{source}"\n')
    code, _, err = answer("export", str(tmp_path), "--to", str(tmp_path / "model.pt"))
    assert code == 2
    assert err.startswith("error: export: run")
    assert source.title() in err or f"a {source}" in err


def test_a_run_without_a_checkpoint_is_refused(answer, folder, tmp_path):
    from mmfl.runs.directory import RunDirectory

    RunDirectory.create(tmp_path / "new", read(folder / "experiment.toml").plain(), torch.device("cpu"))
    code, _, err = answer("export", str(tmp_path / "new"), "--to", str(tmp_path / "model.pt"))
    assert (code, "has no checkpoint yet" in err) == (2, True)
