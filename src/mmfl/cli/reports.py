"""The commands that show runs: report and dashboard."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmfl.cli import completion
from mmfl.cli.console import console, on_stderr, say, show_json
from mmfl.cli.help import command
from mmfl.errors import UserError
from mmfl.runs.layout import is_sweep

if TYPE_CHECKING:
    from mmfl.report.figure import Figure

app = typer.Typer(rich_markup_mode=None)


@command(
    app,
    "mmfl report runs/try",
    "mmfl report runs/try runs/again --out both.html --export png,csv",
    "mmfl report runs/try --json",
)
def report(
    directories: Annotated[list[Path], typer.Argument(help="Run directories.", autocompletion=completion.runs)],
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file, or a folder for report.html; by default the first run's directory."),
    ] = None,
    export: Annotated[
        str,
        typer.Option(
            help="Also write every figure, into a folder beside it: any of png,csv,parquet.",
            autocompletion=completion.exports,
        ),
    ] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print the table as JSON, and write nothing.")] = False,
) -> None:
    """Write the report of a run or a sweep, one HTML file.

    Several runs are compared.
    """
    from mmfl.report import exports, figures, page
    from mmfl.report.display import show_results
    from mmfl.report.interactive import require_plotly
    from mmfl.report.sources import combine_sources, find_repeated, load_sources, note
    from mmfl.runs.layout import REPORT_PAGE

    formats = exports.formats_of(export) if export else []
    if any(map(is_sweep, directories)):
        return report_sweep(directories, out, formats, json_)
    if json_:
        with on_stderr():
            table = combine_sources(load_sources(directories)).table()
        return show_json(json.loads(table.reset_index().to_json(orient="records")))
    require_plotly()
    path = page.place(out) if out else directories[0] / REPORT_PAGE
    sources = load_sources(directories)
    comparison = combine_sources(sources)
    if again := find_repeated(directories):
        say(f"given more than once, and counted once: {', '.join(map(str, again))}")
    if differing := note(sources):
        say(differing)
    show_results(console, comparison)
    page.write(comparison, path, sources)
    return export_figures(figures.figures(comparison), path, formats)


def report_sweep(directories: Sequence[Path], out: Path | None, formats: Sequence[str], as_json: bool) -> None:
    """Writes the report of a sweep, or prints its table as JSON."""
    from mmfl.report import page, sweep_page
    from mmfl.report.interactive import require_plotly
    from mmfl.report.sweep_figures import figures
    from mmfl.runs.layout import REPORT_PAGE
    from mmfl.runs.sweep_directory import SweepDirectory
    from mmfl.runs.sweep_results import load_sweep

    if len(directories) > 1:
        raise UserError("report: a sweep has a report of its own; expected its directory alone.")
    with on_stderr() if as_json else nullcontext():
        sweep = load_sweep(directories[0])
    if not list(sweep):
        raise UserError(f"sweep '{directories[0]}' has no finished run yet.")
    if as_json:
        return show_json(sweep.to_json())
    require_plotly()
    path = page.place(out) if out else directories[0] / REPORT_PAGE
    sweep_page.show(console, sweep)
    sweep_page.write(sweep, path, SweepDirectory(directories[0]).read().settings)
    return export_figures(figures(sweep), path, formats)


def export_figures(made: Sequence["Figure"], path: Path, formats: Sequence[str]) -> None:
    """Writes the figures of a report into a folder beside it, and says what was written."""
    from mmfl.report import exports

    written = exports.export(made, path.with_suffix(""), formats) if formats else []
    more = f", and {len(written)} files in {path.with_suffix('')}" if written else ""
    say(f"wrote {path}{more}")


@command(app, "mmfl dashboard", "mmfl dashboard experiments/faces --port 9000 --no-open")
def dashboard(
    folder: Annotated[
        Path, typer.Argument(help="Folder with runs, at any depth.", autocompletion=completion.folders)
    ] = Path("runs"),
    port: Annotated[int | None, typer.Option(help="Port on loopback; by default 8421, or a free one.")] = None,
    host: Annotated[str, typer.Option(help="Loopback address.")] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
) -> None:
    """Show runs in the browser while they are running.

    Ctrl-C ends the dashboard, and no run.
    """
    from mmfl.dashboard.server import Server

    with Server(folder, port, host) as server:
        say(f"runs in {folder}: {server.url} (Ctrl-C ends)")
        server.show(open_)
    say("dashboard ended")
