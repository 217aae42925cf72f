"""The page of errors quotes them as they are: each is provoked here, by what a user would do."""

import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mmfl
from mmfl import Federation, Task, data, models, partition
from mmfl.cli import main
from mmfl.errors import UserError
from pages import text_of

ENTRY = re.compile(r"^### (?P<title>[^\n]*)\n\n```text\n(?P<error>.*?)```$", re.DOTALL | re.MULTILINE)
QUOTED = {found["title"]: found["error"] for found in ENTRY.finditer(text_of("docs/errors.md"))}
DIGITS = partial(Task, "digits", models.LogisticRegression, data.digits())
TABLE = '[[tasks]]\nname = "digits"\ndata = "digits"\nmodel = "logistic"\n'


def typed(*words, file=""):
    """A command line, in a folder that holds `experiment.toml`."""

    def run(folder):
        (folder / "experiment.toml").write_text(file)
        sys.argv = ["mmfl", *words]
        main()

    return run


def written(program):
    """A call in Python."""
    return lambda folder: program()


def network(*layers):
    return lambda: nn.Sequential(nn.Flatten(), *layers)


def owned(owners, *names):
    owner = np.resize(names or np.arange(owners), 12)
    return data.from_arrays(np.zeros((12, 64), "float32"), np.zeros(12, int), owner)


def finished(method):
    return mmfl.train(Federation([DIGITS()], clients=4), method, rounds=1, directory="runs/first")


def resumed_as_another_method():
    finished("random")
    mmfl.train(Federation([DIGITS()], clients=4), "full", rounds=1, directory="runs/first", resume=True)


def resumed_without_records():
    finished("random")
    Path("runs/first/metrics.jsonl").unlink()
    mmfl.train(Federation([DIGITS()], clients=4), "random", rounds=1, directory="runs/first", resume=True)


def in_use_elsewhere():
    finished("random")
    Path("runs/first/lock").write_text('{"pid": 4711, "host": "elsewhere", "birth": "1"}')
    mmfl.train(Federation([DIGITS()], clients=4), "random", rounds=1, directory="runs/first", resume=True)


def loaded_after_damage():
    mmfl.train(Federation([DIGITS()], clients=4), "random", rounds=3, directory="runs/first")
    lines = Path("runs/first/metrics.jsonl").read_text().splitlines()
    Path("runs/first/metrics.jsonl").write_text("\n".join([lines[0], lines[1][:99], lines[2], ""]))
    mmfl.load("runs/first")


def loaded_of_a_later_version():
    finished("random")
    path = Path("runs/first/config.toml")
    path.write_text(path.read_text().replace("format = 1", "format = 9"))
    mmfl.load("runs/first")


def resumed_without_checkpoints():
    finished("random")
    Path("runs/first/checkpoint/round-000001.json").write_text("{")
    mmfl.train(Federation([DIGITS()], clients=4), "random", rounds=1, directory="runs/first", resume=True)


def run_on_a_full_disk():
    class Fills(mmfl.Listener):
        def begin(self, info):
            Path("runs/first/metrics.jsonl").symlink_to("/dev/full")

    mmfl.train(Federation([DIGITS()], clients=4), "random", 1, directory="runs/first", listeners=[Fills()])


MISTAKES = {
    "The file or preset does not exist": typed("run", "lvr-3taks"),
    "The file is not TOML": typed("run", "experiment.toml", file="rounds 50\n"),
    "Unknown key": typed("run", "experiment.toml", file=TABLE + "learning_rate = 0.1\n"),
    "A key is missing": typed("run", "experiment.toml", file=TABLE.replace('model = "logistic"\n', "")),
    "A value of the wrong kind": typed("run", "--set", "rounds=many"),
    "A setting without a value": typed("run", "--set", "rounds"),
    "Unknown method": typed("run", "--set", "method=mmfl-lrv"),
    "Unknown option": typed(
        "run", "--set", 'federation.partition={name="labels", frac=0.3}', "experiment.toml", file=TABLE
    ),
    "Your module is not found": typed(
        "run", "experiment.toml", file=TABLE.replace('"digits"\nm', '"my_module.load"\nm')
    ),
    "A data set is missing": written(lambda: data.femnist(folder="data")),
    "How many clients?": written(lambda: Federation([DIGITS()])),
    "Owners by name in one task, by number in another": written(
        lambda: Federation(
            [
                Task("letters", models.LogisticRegression, owned(2, "ann", "bob")),
                Task("other", DIGITS().model, owned(2)),
            ]
        )
    ),
    "A row without a valid owner": written(lambda: data.from_arrays(np.ones((3, 2)), [0, 1, 0], owner=[0, 1, np.nan])),
    "Owners that do not match": written(
        lambda: Federation([DIGITS(), Task("other", models.LogisticRegression, owned(3))], clients=5)
    ),
    "More clients than examples": written(lambda: Federation([DIGITS()], clients=2000)),
    "Too few examples of a label": written(
        lambda: Federation([DIGITS()], clients=2000, partition=partition.labels(0.1, sizes=1))
    ),
    "The model wants arguments": written(lambda: Federation([Task("digits", nn.Linear, data.digits())], clients=4)),
    "The model fails on the inputs": written(
        lambda: Federation([Task("digits", network(nn.Linear(60, 10)), data.digits())], clients=4)
    ),
    "Batch statistics": written(
        lambda: Federation([Task("digits", network(nn.BatchNorm1d(64), nn.Linear(64, 10)), data.digits())], clients=4)
    ),
    "More labels than outputs": written(
        lambda: Federation([Task("digits", partial(models.LogisticRegression, classes=9), data.digits())], clients=4)
    ),
    "A loss that is a single number": written(
        lambda: Federation([DIGITS(loss=nn.functional.cross_entropy)], clients=4)
    ),
    "A loss that mixes examples": written(
        lambda: Task(
            "hours",
            partial(nn.Linear, 64, 1),
            data.from_arrays(np.ones((9, 64)), np.arange(9.0)),
            loss=lambda outputs, targets: (outputs - targets) ** 2,
            metric=mmfl.objectives.absolute_error,
        ).check()
    ),
    "The model is an instance": written(lambda: Task("digits", nn.Linear(64, 10), data.digits())),
    "Nothing would train": written(
        lambda: mmfl.train(Federation([DIGITS()], clients=2, arrivals=[4, 5]), "random", rounds=3)
    ),
    "An invalid number": written(lambda: mmfl.train(Federation([DIGITS()], clients=2), "random", rounds="3")),
    "An invalid learning rate in a later round": written(
        lambda: mmfl.train(
            Federation([DIGITS(lr=lambda round: 0.1 if round < 3 else float("nan"))], clients=2), "random", rounds=3
        )
    ),
    "Not enough memory": written(lambda: mmfl.compare(Federation([DIGITS()], clients=2), ["random"], seeds=10**12)),
    "Numbers where classes are expected": written(
        lambda: Federation(
            [Task("hours", models.LogisticRegression, data.from_arrays(np.ones((9, 64)), np.ones(9)))], clients=2
        )
    ),
    "Too much capacity": written(lambda: Federation([DIGITS()], clients=4, capacity=2)),
    "The rate is not a share": typed("run", "--set", "rate=15", "--out", "runs/second"),
    "The run directory exists": written(lambda: (finished("random"), finished("random"))),
    "A later version wrote it": written(loaded_of_a_later_version),
    "Not a run directory": typed("resume", "runs/frist"),
    "A run from Python": lambda folder: (finished("random"), typed("resume", "runs/first")(folder)),
    "The checkpoint belongs to another run": written(resumed_as_another_method),
    "The run directory is a file": typed("run", "--out", "experiment.toml"),
    "The run is in use": written(in_use_elsewhere),
    "Records are damaged": written(loaded_after_damage),
    "Records are gone": written(resumed_without_records),
    "No checkpoint can be read": written(resumed_without_checkpoints),
    "The disk is full": written(run_on_a_full_disk),
    "No CUDA device": typed("run", "--device", "cuda", "--out", "runs/second"),
    "Flower is not installed": typed("deploy", "app.py", "--local", "2"),
    "Local or remote deployment": typed("deploy", "app.py"),
    "An address that others can reach": typed("link", "0.0.0.0:8000"),
    "A connection that must be encrypted": typed(
        "node", "app.py", "--clients", "0", "--server", "fed.example.org:8000"
    ),
}


def said(mistake, folder, capsys) -> str:
    """The message of an error, as the command line shows it."""
    with pytest.raises((UserError, SystemExit)) as caught:
        mistake(folder)
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 2
        return capsys.readouterr().err
    return f"error: {caught.value}\n"


@pytest.mark.parametrize("title", MISTAKES)
def test_an_error_reads_as_the_page_quotes_it(title, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if title == "Flower is not installed":
        monkeypatch.setattr("mmfl.deployment.programs.find_spec", lambda name: None)
    if title == "Not enough memory":
        monkeypatch.setattr("mmfl.checks.os.sysconf", {"SC_PAGE_SIZE": 4000, "SC_PHYS_PAGES": 4_000_000}.__getitem__)
    (tmp_path / "app.py").write_text("def tasks(): ...\ndef data(task, client): ...\n")
    assert said(MISTAKES[title], tmp_path, capsys).replace(f"{tmp_path}/", "") == QUOTED[title]


def test_every_error_on_the_page_is_provoked():
    assert set(QUOTED) == set(MISTAKES)
