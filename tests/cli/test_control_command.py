"""`mmfl control`: what its owner asks of a running deployment, and what is refused."""

import json
import os

import pytest

from mmfl.runs.changes import read_requests
from mmfl.runs.live import LiveStateWriter

MODULE = (
    "import mmfl\ndef tasks():\n    return [mmfl.Task('new', mmfl.models.LogisticRegression, mmfl.data.digits())]\n"
)


@pytest.fixture
def run(tmp_path):
    """A run directory as the server of a deployment leaves it."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('source = "deployment"\n[settings]\nmethod = "random"\nrounds = 9\n')
    LiveStateWriter(path).update({}, set(), 0, tasks=["a", "b"])
    (tmp_path / "app.py").write_text(MODULE + "def data(task, client):\n    return None\n")
    return path


def test_a_run_is_paused_and_goes_on(run, answer):
    assert answer("control", "pause", str(run))[0] == 0
    assert (run / "pause").exists()
    assert answer("control", "go-on", str(run))[0] == 0
    assert not (run / "pause").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "value"),
    [
        (["rate", "RUN", "0.2"], "rate", 0.2),
        (["rounds", "RUN", "500"], "rounds", 500),
        (["retire-task", "RUN", "b"], "retire-task", "b"),
        (["add-task", "RUN", "new", "APP"], "add-task", "new"),
    ],
)
def test_a_change_is_asked_for_by_a_file_of_the_owner(run, answer, arguments, kind, value):
    words = {"RUN": str(run), "APP": str(run.parent / "app.py")}
    code, out, err = answer("control", *(words.get(word, word) for word in arguments))
    assert (code, "asked for" in out) == (0, True), err
    ((path, change),) = read_requests(run)
    assert (change.kind, change.value) == (kind, value)
    assert path.parent.stat().st_mode & 0o077 == 0
    if kind == "add-task":
        assert (run / change.module).read_text().startswith(MODULE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pause", "NOWHERE"], "is not a run directory"),
        (["pause", "SIMULATION"], "is not a deployment"),
        (["go-on", "RUN"], "is not paused"),
        (["stop", "RUN"], "is not running"),
        (["rate", "RUN", "0"], "rate is 0.0; expected a share of the processors in (0, 1]"),
        (["rate", "RUN", "nan"], "rate is nan"),
        (["rounds", "RUN", "0"], "rounds is 0"),
        (["retire-task", "RUN", "c"], "has no task 'c'"),
        (["add-task", "RUN", "a", "APP"], "'app.py' has no task 'a'"),
        (["add-task", "RUN", "new", "none.py"], "app 'none.py' does not exist"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(run, answer, arguments, words):
    simulation = run.parent / "simulation"
    simulation.mkdir()
    (simulation / "config.toml").write_text('rounds = 3\nmethod = "random"\n')
    app = run.parent / "app.py"
    places = {"RUN": run, "NOWHERE": run / "nowhere", "SIMULATION": simulation, "APP": app}
    before = sorted(run.iterdir())
    code, out, err = answer("control", *(str(places.get(word, word)) for word in arguments))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
    assert sorted(run.iterdir()) == before


def test_another_user_is_refused(run, answer, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: run.stat().st_uid + 1)
    code, _, err = answer("control", "pause", str(run))
    assert (code, "belongs to another user" in err) == (2, True)
    assert json.loads((run / "live.json").read_text())["tasks"] == ["a", "b"]
