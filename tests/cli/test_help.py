"""Every command's help, and the page about the command line, checked against the commands themselves."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from mmfl.cli import EXIT_CODES, app
from mmfl.methods import make_method
from mmfl.papers import CATALOGUE
from mmfl.runs import config, presets

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/cli.md").read_text()
MAIN = typer.main.get_command(app)


def found(command, path=("mmfl",)):
    """A command and all below it, by what is typed to call them."""
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from found(below, (*path, name))


COMMANDS = dict(found(MAIN))
LEAVES = {name.removeprefix("mmfl "): command for name, command in COMMANDS.items() if not hasattr(command, "commands")}


def help_of(name):
    return COMMANDS[name].get_help(typer.Context(COMMANDS[name], info_name=name, terminal_width=80))


def examples_of(name):
    text = help_of(name).partition("\nExamples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in text.replace("\\\n", "").splitlines()]


def parsed(line):
    """The command that a line calls, and its parameters."""
    command, (_, *words) = MAIN, shlex.split(line, comments=True)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    return command, command.make_context(command.name, words).params


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal_and_ends_with_examples(name):
    text = help_of(name)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert 2 <= len(examples_of(name)) <= 3
    last = EXIT_CODES if name == "mmfl" else examples_of(name)[-1].rpartition("  ")[2]
    assert text.endswith(last)


@pytest.mark.parametrize("name", LEAVES)
def test_help_says_what_every_argument_and_option_is(name):
    text, again = help_of(f"mmfl {name}"), help_of(f"mmfl {name}")
    assert text == again
    assert "\\[" not in text
    assert text.count("rguments:\n") == any(each.param_type_name == "argument" for each in LEAVES[name].params)
    for parameter in LEAVES[name].params:
        assert parameter.help, parameter.name
        assert "".join(parameter.help.split()) in "".join(text.split())


@pytest.mark.parametrize("line", [line for name in COMMANDS for line in examples_of(name)])
def test_examples_of_the_help_are_understood(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(presets.path_of("demo").read_text())
    _, given = parsed(line)
    if "file" in given and "set_" in given and "local" not in given:
        methods = str(given.get("methods") or "full").split(",")
        assert config.read(given["file"], given["set_"] or (), methods=methods).tasks
        assert [make_method(method).name for method in methods] == methods
    assert set(given.get("ids") or ()) <= set(CATALOGUE)


def test_the_page_has_every_command_with_an_example_that_is_understood():
    rows = re.findall(r"^\| `([a-z -]+)` \| .+ \| `(mmfl .+)` \|$", PAGE, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(LEAVES)
    for name, line in rows:
        assert parsed(line)[0] is LEAVES[name]


def test_exit_codes_of_the_help_are_those_of_the_page():
    codes = re.findall(r"^  (\d+)", EXIT_CODES, re.MULTILINE)
    assert codes == re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
