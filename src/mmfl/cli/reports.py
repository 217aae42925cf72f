"""The commands that show runs: report and dashboard."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mmfl.cli import completion
from mmfl.cli.console import console, on_stderr, say, show_json
from mmfl.cli.help import command

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
    """Write a run's report, one HTML file.

    Several runs are compared.
    """
    from mmfl.report import exports, figures, page
    from mmfl.report.display import show_results
    from mmfl.report.interactive import require_plotly
    from mmfl.report.sources import combine_sources, find_repeated, load_sources, note
    from mmfl.runs.layout import REPORT_PAGE

    formats = exports.formats_of(export) if export else []
    if json_:
        with on_stderr():
            table = combine_sources(load_sources(directories)).table()
        show_json(json.loads(table.reset_index().to_json(orient="records")))
        return
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
    written = exports.export(figures.figures(comparison), path.with_suffix(""), formats)
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
