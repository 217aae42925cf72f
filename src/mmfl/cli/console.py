"""The one console of all commands, and JSON in place of it.

Rich knows what to do about NO_COLOR, FORCE_COLOR and TERM=dumb. Only whether lines may be drawn over is decided here,
by whether a terminal is there to see it: colours that are forced into a file are no reason.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape

from mmfl.report.terminal_table import listing

console = Console(
    width=None if sys.stdout.isatty() else 120,
    force_interactive=sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"),
)


@contextmanager
def on_stderr() -> Iterator[None]:
    """While active, what is said, warnings among it, goes to stderr, so that stdout is JSON alone."""
    console.stderr = True
    try:
        yield
    finally:
        console.stderr = False


def say(text: str) -> None:
    """A line as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def show_json(value: Any) -> None:
    """A value for programs: JSON, and nothing else."""
    print(json.dumps(value, indent=2), flush=True)


def show_rows(rows: Sequence[Mapping[str, Any]], *headings: str) -> None:
    """A table with a row for each, under these headings."""
    table = listing(*headings)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    console.print(table)
