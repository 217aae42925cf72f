"""The commands that list runs, methods and data sets, and the one that draws data."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from mmfl.cli import completion
from mmfl.cli.console import console, say, show_json, show_rows
from mmfl.cli.help import Group, command, examples
from mmfl.cli.options import ConfigFile, Settings
from mmfl.errors import UserError
from mmfl.report.terminal_table import listing
from mmfl.runs import presets
from mmfl.runs.listing import RunSummary, list_runs

app = typer.Typer(rich_markup_mode=None)
data = typer.Typer(
    name="data",
    cls=Group,
    help="Look at data and its partition.",
    epilog=examples("mmfl data plot", "mmfl data plot lvr-3tasks --seed 1"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@command(app, "mmfl runs", "mmfl runs experiments/faces", "mmfl runs --json")
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


@command(app, "mmfl methods", "mmfl methods --json")
def methods(json_: Json = False) -> None:
    """List the methods, with their cost for clients."""
    from mmfl.methods import METHODS

    columns = ("summary", "trains", "evaluates", "stores", "paper")
    rows = [{"method": name, **{key: getattr(entry, key) for key in columns}} for name, entry in METHODS.items()]
    show_rows(rows, "method", "what it does", "train", "evaluate", "stored", "from", as_json=json_)


@command(app, "mmfl datasets", "mmfl datasets --json")
def datasets(json_: Json = False) -> None:
    """List the data sets, and the papers' federations.

    The latter, presets, are run by name: mmfl run lvr-3tasks.
    """
    from mmfl.data import SOURCES
    from mmfl.runs.config import read

    sources = [
        {"data": name, "summary": (source.__doc__ or "").strip().split("\n")[0]} for name, source in SOURCES.items()
    ]
    federations = [
        {
            "preset": name,
            "summary": presets.summary(name),
            "tasks": len(config.tasks),
            "clients": config.federation.clients,
            "rounds": config.rounds,
            "seeds": config.seeds,
        }
        for name, config in ((name, read(name)) for name in presets.NAMES)
    ]
    if json_:
        show_json({"data": sources, "presets": federations})
    else:
        show_rows(sources, "data", "what it is")
        show_rows(federations, "preset", "what it is", "tasks", "clients", "rounds", "seeds")


@command(data, "mmfl data plot", "mmfl data plot lvr-3tasks --seed 1", "mmfl data plot experiment.toml --out who")
def plot(
    file: ConfigFile = None,
    set_: Settings = None,
    seed: Annotated[int, typer.Option(help="The seed whose partition to draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("data-plots"),
) -> None:
    """Draw each client's data: labels and number of examples."""
    from mmfl.report import partition_plots
    from mmfl.runs.config import read

    if seed < 0:
        raise UserError(f"--seed is {seed}; expected 0 or above.")
    federation = read(file, set_ or ()).experiment().federation_of(seed)
    for path in partition_plots.draw(federation, out):
        say(f"wrote {path}")
