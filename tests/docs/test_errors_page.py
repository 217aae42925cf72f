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
TABLE = '[[tasks]]\nname = "digits"\ndata = "digits"\nmodel = "logistic"\n'
RUN = Path("runs/first")


def typed(*words, file=""):
    """A command line, in a folder that holds `experiment.toml`."""

    def run():
        Path("experiment.toml").write_text(file)
        sys.argv = ["mmfl", *words]
        main()

    return run


def digits(model=models.LogisticRegression, **options):
    return Task("digits", model, data.digits(), **options)


def federated(*tasks, clients=4, **options):
    """A federation of these tasks, by default of the digits."""
    return lambda: Federation(tasks or [digits()], clients, **options)


def network(*layers):
    return lambda: nn.Sequential(nn.Flatten(), *layers)


def owned(name, *owners):
    owner = np.resize(owners, 12)
    examples = data.from_arrays(np.zeros((12, 64), "float32"), np.zeros(12, int), owner)
    return Task(name, models.LogisticRegression, examples)


def trained(method="random", rounds=1, **options):
    return mmfl.train(federated()(), method, rounds, directory=RUN, **options)


def swept(rates):
    return mmfl.sweep(federated()(), {"rate": rates}, ["random"], rounds=1, directory=RUN)


def resumed_after(change, method="random"):
    """A finished run that is resumed once something about it has changed."""

    def run():
        trained()
        change()
        trained(method, resume=True)

    return run


def loaded_after_damage():
    trained(rounds=3)
    lines = (RUN / "metrics.jsonl").read_text().splitlines()
    (RUN / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:99], lines[2], ""]))
    mmfl.load(RUN)


def loaded_of_a_later_version():
    trained()
    path = RUN / "config.toml"
    path.write_text(path.read_text().replace("format = 1", "format = 9"))
    mmfl.load(RUN)


def run_on_a_full_disk():
    class Fills(mmfl.Listener):
        def begin(self, info):
            (RUN / "metrics.jsonl").symlink_to("/dev/full")

    trained(listeners=[Fills()])


def mixed_loss():
    hours = data.from_arrays(np.ones((9, 64)), np.arange(9.0))
    squares, error = lambda outputs, targets: (outputs - targets) ** 2, mmfl.objectives.absolute_error
    Task("hours", partial(nn.Linear, 64, 1), hours, loss=squares, metric=error).check()


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
    "A data set is missing": lambda: data.femnist(folder="data"),
    "How many clients?": federated(clients=None),
    "Owners by name in one task, by number in another": federated(
        owned("letters", "ann", "bob"), owned("other", 0, 1), clients=None
    ),
    "A row without a valid owner": lambda: data.from_arrays(np.ones((3, 2)), [0, 1, 0], owner=[0, 1, np.nan]),
    "Owners that do not match": federated(digits(), owned("other", 0, 1, 2), clients=5),
    "More clients than examples": federated(clients=2000),
    "Too few examples of a label": federated(clients=2000, partition=partition.labels(0.1, sizes=1)),
    "The model wants arguments": federated(digits(nn.Linear)),
    "The model fails on the inputs": federated(digits(network(nn.Linear(60, 10)))),
    "Buffers that training changes": federated(digits(network(nn.BatchNorm1d(64, momentum=None), nn.Linear(64, 10)))),
    "More labels than outputs": federated(digits(partial(models.LogisticRegression, classes=9))),
    "A loss that is a single number": federated(digits(loss=nn.functional.cross_entropy)),
    "A loss that mixes examples": mixed_loss,
    "The model is an instance": lambda: digits(nn.Linear(64, 10)),
    "Nothing would train": lambda: mmfl.train(federated(clients=2, arrivals=[4, 5])(), "random", rounds=3),
    "An invalid number": lambda: trained(rounds="3"),
    "An invalid learning rate in a later round": lambda: mmfl.train(
        federated(digits(lr=lambda round: 0.1 if round < 3 else float("nan")))(), "random", rounds=3
    ),
    "Not enough memory": lambda: mmfl.compare(federated(clients=2)(), ["random"], seeds=10**12),
    "Numbers where classes are expected": federated(
        Task("hours", models.LogisticRegression, data.from_arrays(np.ones((9, 64)), np.ones(9)))
    ),
    "Too much capacity": federated(capacity=2),
    "The rate is not a share": typed("run", "--set", "rate=15", "--out", "runs/second"),
    "The run directory exists": lambda: (trained(), trained()),
    "A later version wrote it": loaded_of_a_later_version,
    "Not a run directory": typed("resume", "runs/frist"),
    "A run from Python": lambda: (trained(), typed("resume", "runs/first")()),
    "The checkpoint belongs to another run": resumed_after(lambda: None, "full"),
    "The sweep has changed": lambda: (swept([0.5, 1.0]), swept([0.5])),
    "The run directory is a file": typed("run", "--out", "experiment.toml"),
    "The run is in use": resumed_after(
        lambda: (RUN / "lock").write_text('{"pid": 4711, "host": "elsewhere", "birth": "1"}')
    ),
    "Records are damaged": loaded_after_damage,
    "Records are gone": resumed_after(lambda: (RUN / "metrics.jsonl").unlink()),
    "No checkpoint can be read": resumed_after(lambda: (RUN / "checkpoint/round-000001.json").write_text("{")),
    "The disk is full": run_on_a_full_disk,
    "No CUDA device": typed("run", "--device", "cuda", "--out", "runs/second"),
    "Flower is not installed": typed("deploy", "app.py", "--local", "2"),
    "Local or remote deployment": typed("deploy", "app.py"),
    "An address that others can reach": typed("link", "0.0.0.0:8000"),
    "A connection that must be encrypted": typed(
        "node", "app.py", "--clients", "0", "--server", "fed.example.org:8000"
    ),
}


def said(mistake, capsys) -> str:
    """The message of an error, as the command line shows it."""
    with pytest.raises((UserError, SystemExit)) as caught:
        mistake()
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
    assert said(MISTAKES[title], capsys).replace(f"{tmp_path}/", "") == QUOTED[title]


def test_every_error_on_the_page_is_provoked():
    assert set(QUOTED) == set(MISTAKES)
