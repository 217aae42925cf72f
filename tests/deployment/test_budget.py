"""The budget of a deployment: shown before it starts, with a word where it is too small for a round."""

import re

import pytest

from mmfl.deployment.settings import DeploymentSettings
from mmfl.runs.status import RunEnd


@pytest.fixture
def shown(tmp_path, monkeypatch, answer, caplog):
    """What `mmfl deploy` says of a trial that is not carried out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mmfl.deployment.programs.require_flower", lambda: None)
    monkeypatch.setattr("mmfl.cli.deploy._deploy", lambda *_: RunEnd("stopped"))
    (tmp_path / "app.py").write_text("def tasks(): ...\ndef data(task, client): ...\n")

    def shown(*words):
        _, out, _ = answer("deploy", "app.py", *words)
        return out, [record.getMessage() for record in caplog.records]

    return shown


@pytest.mark.parametrize(
    ("words", "budget", "warns"),
    [
        ("--rounds 3", "0.3 trainings a round (rate 0.1)", True),
        ("--rate 0.5", "1.5 trainings a round (rate 0.5)", False),
        ("--clients 6 --capacity 2", "1.2 trainings a round (rate 0.1)", False),
        ("--method full", "0.3 trainings a round (rate 0.1)", False),
    ],
)
def test_the_summary_has_the_budget_and_warns_where_it_is_less_than_one_training(shown, words, budget, warns):
    out, warned = shown("--local", "3", *words.split())
    assert budget in out
    assert [text.startswith("the budget is less than one training a round") for text in warned] == [True] * warns


def test_help_has_the_defaults_of_the_settings(shown):
    help = " ".join(shown("--help")[0].split())
    for name in ("method", "rounds", "rate", "timeout"):
        told = re.search(rf"--{name} \w+ .*?by default ([\w.-]+?)\. ", help)
        assert told is not None, help
        assert told[1] == f"{DeploymentSettings.model_fields[name].default}".removesuffix(".0")
