"""The commands that list runs, methods and data sets."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from mmfl.cli import completion
from mmfl.cli.console import console, say, show_json, show_rows
from mmfl.cli.help import Command, examples
from mmfl.report.terminal_table import listing
from mmfl.runs import presets
from mmfl.runs.listing import RunSummary, list_runs

app = typer.Typer(rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command(cls=Command, epilog=examples("mmfl runs", "mmfl runs experiments/faces", "mmfl runs --json"))
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with runs.", autocompletion=completion.folders)] = Path("runs"),
    json_: Json = False,
) -> None:
    """List runs, with their progress and latest metric."""
    found = list_runs(folder)
    if json_:
        show_json([_as_json(each) for each in found])
        return
    table = listing("run", "state", "round", "seeds", "mean of tasks when last tested, by method")
    for each in found:
        means = ", ".join(f"{name} {each.means[name]:.3f}" if name in each.means else name for name in each.methods)
        table.add_row(escape(each.id), each.condition, f"{each.round}/{each.rounds}", str(each.seeds), escape(means))
    console.print(table)
    for each in found:
        for text in [each.reason] if each.condition == "unreadable" else each.notes:
            say(f"{each.id}: {text}")


def _as_json(run: RunSummary) -> dict[str, Any]:
    return {
        "run": run.id,
        "state": run.condition,
        "reason": run.reason or "; ".join(run.notes),
        "methods": run.methods,
        "seeds": run.seeds,
        "round": run.round,
        "rounds": run.rounds,
        "mean": run.means,
    }


@app.command(cls=Command, epilog=examples("mmfl methods", "mmfl methods --json"))
def methods(json_: Json = False) -> None:
    """List the methods, with their cost for clients."""
    from mmfl.methods import METHODS

    rows = [
        {
            "method": name,
            "summary": entry.summary,
            "trains": entry.trains,
            "evaluates": entry.evaluates,
            "stores": entry.stores,
            "paper": entry.paper,
        }
        for name, entry in METHODS.items()
    ]
    if json_:
        show_json(rows)
    else:
        show_rows(rows, "method", "what it does", "train", "evaluate", "stored", "from")


@app.command(cls=Command, epilog=examples("mmfl datasets", "mmfl datasets --json"))
def datasets(json_: Json = False) -> None:
    """List the data sets, and the papers' federations.

    The latter, presets, are run by name: mmfl run lvr-3tasks.
    """
    from mmfl.data import SOURCES
    from mmfl.runs.config import read

    sources = [
        {"data": name, "summary": (source.__doc__ or "").strip().split("\n")[0]} for name, source in SOURCES.items()
    ]
    known = {name: read(name) for name in presets.NAMES}
    federations = [
        {
            "preset": name,
            "summary": presets.summary(name),
            "tasks": len(config.tasks),
            "clients": config.federation.clients,
            "rounds": config.rounds,
            "seeds": config.seeds,
        }
        for name, config in known.items()
    ]
    if json_:
        show_json({"data": sources, "presets": federations})
    else:
        show_rows(sources, "data", "what it is")
        show_rows(federations, "preset", "what it is", "tasks", "clients", "rounds", "seeds")
