"""The program `mmfl`: all commands, and how mistakes end."""

import errno
import logging
import os
import sys
from typing import Annotated

import typer
from rich.logging import RichHandler

import mmfl
from mmfl.cli import (
    completion,
    control,
    deploy,
    export,
    keys,
    listings,
    machines,
    reports,
    reproduction,
    status,
    sweeps,
    training,
)
from mmfl.cli.console import console
from mmfl.cli.help import Group, examples
from mmfl.errors import LostProcessError, UserError, shorten

EXIT_CODES = """Exit codes:
  0    done
  1    an unexpected error (with a traceback), or output that nobody reads
  2    a mistake in the input, or a deployment that failed; stderr says what
  130  stopped by Ctrl-C; a run can be resumed
  143  ended by SIGTERM"""

app = typer.Typer(
    cls=Group,
    help="Multi-model federated learning: many models trained at once over one shared pool of clients.",
    epilog=f"{examples('mmfl compare', 'mmfl run lvr-3tasks --seeds 1', 'mmfl report runs/try')}\n\n{EXIT_CODES}",
    no_args_is_help=True,
    context_settings={"color": False if console.no_color or console.is_dumb_terminal else None},
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _family in (training, sweeps, reports, export, reproduction, listings, deploy, machines, status):
    app.add_typer(_family.app)
app.add_typer(listings.data)
app.add_typer(keys.app)
app.add_typer(control.app)
# Errors of the operating system that are not mistakes of the program.
_SYSTEM_ERRORS = {errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOSPC, errno.EPERM, errno.EROFS}


def main() -> None:
    """Entry point: mistakes of the user end with one line and exit code 2."""
    # Read by torch when it is first used: by default its idle threads spin, which slows down other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_time=False, show_path=False)],
    )
    if {"--install-completion", "--show-completion"} & set(sys.argv[1:]):
        completion.use_our_scripts()
    try:
        app(prog_name="mmfl")
    except UserError as error:
        if isinstance(error, LostProcessError) or os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _SYSTEM_ERRORS:
            raise
        place = f"'{shorten(error.filename)}': " if error.filename else ""
        print(f"error: {place}{error.strerror}.", file=sys.stderr, flush=True)
        sys.exit(2)


def version(show: bool) -> None:
    """Prints the version."""
    if show:
        print(f"mmfl {mmfl.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Multi-model federated learning."""
