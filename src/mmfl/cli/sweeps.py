"""The command that trains over a grid of settings: sweep."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmfl.cli import completion
from mmfl.cli.console import console, on_stderr, resumable, say, show_json
from mmfl.cli.help import command
from mmfl.cli.options import ConfigFile, Device, Quiet, Rounds, Seeds, Settings, Track, default_directory, split_methods
from mmfl.errors import UserError

if TYPE_CHECKING:
    from mmfl.runs.sweep_plan import SweepPlan

app = typer.Typer(rich_markup_mode=None)


@command(
    app,
    "mmfl sweep experiment.toml --grid tasks.digits.lr=0.1,0.3,1.0 --seeds 3",
    "mmfl sweep --grid rate=0.1,0.2 --grid tasks.digits.lr=0.1,0.3 --out runs/grid",
    "mmfl sweep --methods random,mmfl-lvr --grid rate=0.05,0.1,0.2 --json",
)
def sweep(
    file: ConfigFile = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="Values to try for a key of the configuration; repeat it for more keys.",
            autocompletion=completion.settings,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas; by default those of the configuration.",
            autocompletion=completion.methods,
        ),
    ] = None,
    set_: Settings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory; one with the same sweep is continued. By default a new one in runs/."),
    ] = None,
    track: Track = None,
    device: Device = None,
    quiet: Quiet = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train every combination of settings.

    A sweep that is called again with the same --out goes on where it stopped, and may have more values.
    """
    from mmfl.runs import config as configuration
    from mmfl.runs.grid import read_grid
    from mmfl.runs.sweep_plan import plan_config

    values = read_grid(grid or ())
    names = None if methods is None else split_methods(methods)
    given = {"seeds": seeds, "rounds": rounds, "device": device, "trackers": track or None, "methods": names}
    settings = configuration.read(file, set_ or (), **given).plain()
    plan = plan_config(settings, values, configuration.source_of(file))
    train_and_show(plan, out or default_directory("sweep"), quiet, json_)


def resume(directory: Path, device: str | None) -> None:
    """Goes on with a sweep."""
    from mmfl.runs.layout import SWEEP
    from mmfl.runs.lock import check_free
    from mmfl.runs.sweep_directory import SweepDirectory
    from mmfl.runs.sweep_plan import plan_config

    file = SweepDirectory(directory).read()
    check_free(directory)
    if file.source == "python":
        raise UserError(f"sweep '{directory}' was started from Python: call mmfl.sweep again, with the same arguments.")
    plan = plan_config(dict(file.settings), file.grid, str(directory / SWEEP), device)
    train_and_show(plan, directory)


def train_and_show(plan: "SweepPlan", path: Path, quiet: bool = False, as_json: bool = False) -> None:
    """Trains in a sweep's directory, and shows progress and results; of several processes only the first shows them."""
    from mmfl.report.display import show_summary
    from mmfl.report.sweep_page import SweepDisplay, conclude
    from mmfl.runs.sweep import check_sweep, train_sweep
    from mmfl.trackers import make_trackers
    from mmfl.updates.world import leave

    check_sweep(plan, path)
    engine = plan.engine_of(plan.trials[0].common)
    world = engine.world
    path = Path(world.broadcast(str(path)))
    with on_stderr() if as_json else nullcontext():
        console.quiet = not world.first
        if not quiet:
            show_summary(console, {**describe(plan), "device": str(engine.device), "sweep": str(path)})
        started = time.monotonic()
        with resumable(path):
            result = train_sweep(
                plan,
                path,
                None if quiet else SweepDisplay(console),
                lambda common: make_trackers(common.get("trackers", [])),
            )
        if world.first:
            line = conclude(console, result, path, plan.settings, time.monotonic() - started)
            if not quiet:
                say(line)
    leave()
    if as_json and world.first:
        show_json(result.to_json())
    if result.failures:
        count = f"{len(result.failures)} of {len(result)}"
        raise UserError(f"sweep: {count} points and methods failed; `mmfl resume {path}` tries them again.")


def describe(plan: "SweepPlan") -> dict[str, str]:
    """What will be trained, at a glance."""
    from mmfl.runs.grid import describe_size, points, text_of

    size = describe_size(len(points(plan.grid)), len(plan.methods), len(plan.seeds))
    swept = {key: ", ".join(map(text_of, values)) for key, values in plan.grid.items()}
    rounds = {"rounds": f"{plan.settings['rounds']:,}"}
    return {"methods": ", ".join(plan.methods), **plan.federation().describe(), **rounds, **swept, "grid": size}
