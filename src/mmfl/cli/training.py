"""The commands that train in a simulation: run, compare and resume."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmfl.cli import completion, deploy, sweeps
from mmfl.cli.console import console, resumable, say
from mmfl.cli.help import command
from mmfl.cli.options import (
    RUNS,
    ConfigFile,
    Device,
    Out,
    Quiet,
    Rounds,
    Seeds,
    Settings,
    Track,
    default_directory,
    split_methods,
)
from mmfl.errors import UserError

if TYPE_CHECKING:
    import torch

    from mmfl.runs.config_schema import Config
    from mmfl.runs.directory import RunDirectory

app = typer.Typer(rich_markup_mode=None)
DEFAULT_METHODS = "random,mmfl-lvr,forecast,full"


@command(
    app,
    "mmfl run",
    "mmfl run experiment.toml --set method=mmfl-lvr --seeds 5",
    "mmfl run lvr-3tasks --rounds 20 --set tasks.fashion-a.lr=0.1 --out runs/try",
)
def run(
    file: ConfigFile = None,
    set_: Settings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Out = None,
    track: Track = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train with one method."""
    start_run(file, set_, out, quiet, seeds=seeds, rounds=rounds, device=device, trackers=track or None)


@command(
    app,
    "mmfl compare",
    "mmfl compare experiment.toml --methods random,mmfl-lvr,forecast,full --seeds 5",
    "mmfl compare --methods random,forecast --rounds 50 --quiet",
)
def compare(
    file: ConfigFile = None,
    methods: Annotated[
        str, typer.Option(help="Methods to compare, separated by commas.", autocompletion=completion.methods)
    ] = DEFAULT_METHODS,
    set_: Settings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Out = None,
    track: Track = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train with several methods in lockstep."""
    given = {"seeds": seeds, "rounds": rounds, "device": device, "trackers": track or None}
    start_run(file, set_, out, quiet, methods=split_methods(methods), **given)


@command(app, "mmfl resume runs/20260131-120000-mmfl-lvr", "mmfl resume runs/try --device cuda")
def resume(
    directory: Annotated[Path, typer.Argument(help="The run directory.", autocompletion=completion.runs)],
    device: Device = None,
) -> None:
    """Resume a run or a sweep after a crash or Ctrl-C.

    The result is the same as if it had never stopped.
    """
    from mmfl.runs import config as configuration
    from mmfl.runs.directory import RunDirectory
    from mmfl.runs.layout import CONFIG, is_sweep
    from mmfl.runs.lock import check_free

    if is_sweep(directory):
        return sweeps.resume(directory, device)
    opened = RunDirectory.open(directory)
    check_free(directory)  # checked again when training begins; here so that the answer comes at once
    values = opened.config()
    if values.get("source") == "python":
        raise UserError(
            f"run '{directory}' was started from Python: resume it there, with the same arguments and resume=True."
        )
    if values.get("source") == "sweep":
        raise UserError(f"run '{directory}' is a part of a sweep; resume the sweep: mmfl resume {directory.parent}")
    if values.get("source") == "deployment":
        return deploy.run_deployment(directory, values, resume=True)
    config = configuration.parse(values, str(directory / CONFIG))
    return train_and_show(config, directory, device or config.device, lambda _: opened, resume=True)


def start_run(file: Path | None, settings: list[str] | None, out: Path | None, quiet: bool, **overrides: Any) -> None:
    """Trains in a new run directory."""
    from mmfl.runs import config as configuration
    from mmfl.runs.directory import RunDirectory
    from mmfl.runs.restarts import find_begun, is_begun_by_job

    config = configuration.read(file, settings or (), **overrides)
    names = [method if isinstance(method, str) else str(method.get("name")) for method in config.methods]
    plain = config.plain()
    path = out or find_begun(RUNS, plain) or default_directory(names[0] if len(names) == 1 else "comparison")
    if os.environ.get("RANK", "0") == "0" and not is_begun_by_job(path, plain):
        RunDirectory.refuse_used(path)  # checked again when training begins; here so that the answer comes at once
    train_and_show(config, path, config.device, lambda device: RunDirectory.create(path, plain, device), quiet)


def train_and_show(
    config: "Config",
    path: Path,
    device: str | None,
    open_directory: Callable[["torch.device"], "RunDirectory"],
    quiet: bool = False,
    resume: bool = False,
) -> None:
    """Trains in a run directory and shows progress and results; of several processes only the first shows them."""
    from mmfl.engine import Simulation
    from mmfl.report.display import Display, conclude, show_summary
    from mmfl.runs.experiment import conduct
    from mmfl.runs.listener import ListenerGroup
    from mmfl.trackers import make_trackers
    from mmfl.updates.world import leave

    engine = Simulation(device, config.engine, config.precision, privacy=config.privacy.build())
    world = engine.world
    console.quiet = not world.first
    path = Path(world.broadcast(str(path)))
    experiment = config.experiment()
    listener = ListenerGroup([*make_trackers(config.trackers), *([] if quiet else [Display(console)])])
    federation = experiment.federation_of(experiment.seeds[0])
    seeds = len(experiment.seeds)
    summary = {
        "methods": ", ".join(method.name for method in experiment.methods),
        **federation.describe(),
        "budget": f"{config.rate * federation.capacity.sum():.1f} trainings a round (rate {config.rate:g})",
        "rounds": f"{config.rounds:,} x {seeds} seed{'s' if seeds > 1 else ''} on {engine.device}"
        + (f", {world.size} processes" if world.size > 1 else ""),
        "run": str(path),
    }
    if not quiet:
        show_summary(console, summary)
    started = time.monotonic()
    with resumable(path):
        opened = partial(open_directory, engine.device)
        comparison = conduct(experiment, engine, open_directory=opened, resume=resume, listener=listener)
    if world.first:
        summary_line = conclude(console, comparison, path, time.monotonic() - started)
        if not quiet:
            say(summary_line)
    leave()
