"""The pages of the documentation: their blocks of code, and how to run them."""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import takewhile, zip_longest
from pathlib import Path

import click
from typer.main import get_command

from mmfl.cli import app
from mmfl.runs.config import parse
from prompt import mmfl

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))
PAGES = [page for page in PAGES if "/discussion/" not in page]  # those are parts of the pages beside them
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`(mmfl [^`]+)`")
PROGRAMS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "python": [sys.executable],
}


def environment() -> dict[str, str]:
    """The environment in which the commands of a page run."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_WAIT_POLICY": "passive", "COLUMNS": "120"}


@dataclass(frozen=True)
class Block:
    """A fenced block. A block that begins with a comment such as `# name.py` is the text of that file."""

    kind: str
    text: str

    @property
    def file(self) -> str | None:
        named = re.match(r"# ([\w-]+\.(?:py|toml))\n", self.text)
        return named and named[1]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, *kinds: str) -> list[Block]:
    found = [Block(match["kind"], match["text"]) for match in BLOCK.finditer(text_of(page))]
    return [block for block in found if not kinds or block.kind in kinds]


# --- doing what a page says -----------------------------------------------------------


RUNS = ("python", "toml", "console")


def follow(page: str, folder: Path) -> Iterator[str]:
    """Follows a page in a folder as a reader would: writes its files, runs its Python and its commands, and checks that
    they print what is shown. Yields a name for each block before it runs."""
    namespace, everything = {"__name__": "page"}, blocks(page)
    with reading_in(folder):
        for number, (block, after) in enumerate(zip_longest(everything, everything[1:]), 1):
            if block.kind in RUNS:
                yield f"block {number} ({block.kind})"
            if block.file:
                (folder / block.file).write_text(block.text)
            if block.kind == "python" and not block.file:
                with redirect_stdout(StringIO()) as printed:
                    exec(compile(block.text, page, "exec"), namespace)
                if after and after.kind == "text":
                    assert printed.getvalue() == after.text, f"printed:\n{printed.getvalue()}\nshown:\n{after.text}"
            if block.kind == "toml":
                parse(tomllib.loads(block.text), page)
            for command, output in session_commands(block) if block.kind == "console" else []:
                check(command, output, folder)


@contextmanager
def reading_in(folder: Path) -> Iterator[None]:
    """Works in a folder and imports from it; modules imported from it are unloaded afterwards."""
    known = set(sys.modules)
    with chdir(folder):
        sys.path.insert(0, str(folder))
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            for name in set(sys.modules) - known:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                    del sys.modules[name]


def session_commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a session, each with the output shown for it."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    assert not parts[0], f"a session begins with a prompt, not with: {parts[0]}"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def check(command: str, shown: str, folder: Path) -> None:
    """Runs a command. It must succeed, or exit with code 2 if an error is shown, and print what is shown; `...` stands
    for anything."""
    program, *arguments = shlex.split(command)
    if program == "mmfl":
        done = mmfl(*arguments, cwd=folder, env=environment())
    else:
        words = [*PROGRAMS.get(program, [program]), *arguments]
        done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600)
    printed = done.stdout + done.stderr
    assert done.returncode == (2 if shown.startswith("error:") else 0), f"{command}: {printed}"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert not shown or doctest.OutputChecker().check_output(shown, printed, flags), f"{command} printed:\n{printed}"


# --- commands as the command line knows them ------------------------------------------


def commands(page: str) -> list[str]:
    """The complete `mmfl` commands in the shell blocks of a page."""
    lines = [line for block in blocks(page, "sh") for line in block.text.replace("\\\n", " ").splitlines()]
    lines += [command for block in blocks(page, "console") for command, _ in session_commands(block)]
    words = [shlex.split(line, comments=True) for line in lines]
    mmfl_commands = [each[each.index("mmfl") :] for each in words if "mmfl" in each]
    return [shlex.join(takewhile(lambda word: word != "|", each)) for each in mmfl_commands]


def known_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and the remaining words; a word in capitals is a placeholder."""
    command, rest = get_command(app), words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-") and not rest[0].isupper():
        assert rest[0] in command.commands, f"no command '{rest[0]}'"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def unknown_options(words: list[str]) -> list[str]:
    """Options among the words that the command does not have."""
    command, rest = known_command(words)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in rest if word.startswith("--") and word.split("=")[0] not in known | {"--help"}]
