"""The commands that change a running deployment: pause, go-on, stop, rate, rounds, add-task and retire-task."""

from pathlib import Path
from typing import Annotated

import typer

from mmfl.cli import completion
from mmfl.cli.console import say
from mmfl.cli.help import Group, command, examples
from mmfl.cli.options import AppFile
from mmfl.errors import UserError, nearest
from mmfl.runs import changes, status
from mmfl.runs.changes import RunChange
from mmfl.runs.layout import ADDED_TASKS, CONFIG, PAUSE, STOP
from mmfl.runs.listing import read_config_summary
from mmfl.runs.live import read_live

app = typer.Typer(
    name="control",
    cls=Group,
    help="Change a running deployment, on the server's machine.",
    epilog=examples("mmfl control pause runs/try", "mmfl control rate runs/try 0.2"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

DeployedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="The deployment's run directory.", autocompletion=completion.runs)
]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")]


@command(app, "mmfl control pause runs/try", "mmfl control pause runs/20260131-120000-forecast")
def pause(run: DeployedRun) -> None:
    """Begin no further round until `mmfl control go-on`."""
    _check(run)
    (run / PAUSE).touch(mode=0o600)
    _say(run, "pauses after the round under way; go on with: mmfl control go-on " + str(run))


@command(app, "mmfl control go-on runs/try", "mmfl control go-on runs/20260131-120000-forecast")
def go_on(run: DeployedRun) -> None:
    """Go on with a run that was paused."""
    _check(run)
    if not (run / PAUSE).exists():
        raise UserError(f"control: run '{run}' is not paused.")
    (run / PAUSE).unlink(missing_ok=True)
    _say(run, "goes on")


@command(app, "mmfl control stop runs/try", "mmfl control stop runs/20260131-120000-forecast")
def stop(run: DeployedRun) -> None:
    """Stop after the round under way, with a checkpoint, as Ctrl-C does."""
    _check(run)
    if not _is_running(run):
        raise UserError(f"control: run '{run}' is not running.")
    (run / STOP).touch(mode=0o600)
    _say(run, f"stops after the round under way; `mmfl resume {run}` continues it")


@command(app, "mmfl control rate runs/try 0.2", "mmfl control rate runs/try 1")
def rate(
    run: DeployedRun,
    value: Annotated[float, typer.Argument(metavar="RATE", help="Share of the processors that train in a round.")],
) -> None:
    """Change the rate."""
    _request(run, RunChange("rate", value))


@command(app, "mmfl control rounds runs/try 500", "mmfl control rounds runs/try 50")
def rounds(
    run: DeployedRun, value: Annotated[int, typer.Argument(metavar="ROUNDS", help="Number of the last round.")]
) -> None:
    """Change the number of rounds."""
    _request(run, RunChange("rounds", value))


@command(app, "mmfl control add-task runs/try faces app2.py", "mmfl control add-task runs/try faces upgraded.py")
def add_task(run: DeployedRun, task: TaskName, file: AppFile) -> None:
    """Add a task from the tasks() of a module, which is copied into the run directory.

    Nodes train it once they were restarted with a module that has it.
    """
    from mmfl.deployment import programs
    from mmfl.deployment.control import keep_module, load_task

    _check(run)
    module = programs.check_module(file)
    load_task(module, task)
    if (live := read_live(run)) and task in live.tasks:
        raise UserError(f"control: run '{run}' has a task '{task}' already; expected a new name.")
    _request(run, RunChange("add-task", task, keep_module(run, module, ADDED_TASKS)))


@command(app, "mmfl control retire-task runs/try faces", "mmfl control retire-task runs/try linear")
def retire_task(run: DeployedRun, task: TaskName) -> None:
    """Train a task no longer; its model stays and can be exported."""
    _check(run)
    live = read_live(run)
    if live and task not in live.tasks:
        raise UserError(f"control: run '{run}' has no task '{task}': {nearest(task, live.tasks)}")
    _request(run, RunChange("retire-task", task))


def _check(run: Path) -> None:
    """Refuses what is no deployment, and other users than its owner."""
    if not (run / CONFIG).is_file():
        raise UserError(f"control: '{run}' is not a run directory: it has no {CONFIG}; `mmfl runs` lists runs.")
    if read_config_summary(run / CONFIG).config.get("source") != "deployment":
        raise UserError(f"control: run '{run}' is not a deployment; only those can be changed while they run.")
    changes.check_owner(run)


def _is_running(run: Path) -> bool:
    state = status.read(run)
    return state is not None and state.condition == "running"


def _request(run: Path, change: RunChange) -> None:
    _check(run)
    changes.request(run, change)
    _say(run, f"asked for: {change}; `mmfl status {run}` shows when it is made")


def _say(run: Path, what: str) -> None:
    later = "" if _is_running(run) else f" (it is not running now; this holds once it is resumed: mmfl resume {run})"
    say(f"{run}: {what}{later}")
