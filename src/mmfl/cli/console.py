"""The console that all commands share, and JSON output.

Rich handles NO_COLOR, FORCE_COLOR and TERM=dumb. Only whether lines may be overwritten is decided here: on a terminal,
and not because colours are forced.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from mmfl.errors import LostProcessError
from mmfl.report.terminal_table import listing
from mmfl.runs.processes import torchrun_restarts_left

console = Console(
    width=None if sys.stdout.isatty() else 120,
    force_interactive=sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"),
)


@contextmanager
def on_stderr() -> Iterator[None]:
    """Sends console output, including warnings, to stderr, so that stdout holds only JSON."""
    console.stderr = True
    try:
        yield
    finally:
        console.stderr = False


def say(text: str) -> None:
    """Prints a line without markup, highlighting or wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Says how to go on with what trains in a directory, where Ctrl-C or a lost process ends it."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nstopped; go on with: mmfl resume {path}")
        raise typer.Exit(130) from None
    except LostProcessError as error:
        again = "torchrun starts it again." if torchrun_restarts_left() else f"Go on with: mmfl resume {path}"
        raise LostProcessError(f"{error} {again}") from None


def show_json(value: Any) -> None:
    """Prints a value as JSON."""
    print(json.dumps(value, indent=2), flush=True)


def show_rows(rows: Sequence[Mapping[str, Any]], *headings: str, as_json: bool = False) -> None:
    """Prints a table with these headings, or JSON."""
    if as_json:
        show_json(rows)
        return
    table = listing(*headings)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    console.print(table)
