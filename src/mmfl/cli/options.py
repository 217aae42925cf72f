"""Arguments and options that several commands share."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mmfl.cli import completion
from mmfl.errors import UserError

ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        help="A TOML file or the name of a preset; without it, the embedded default.",
        show_default=False,
        autocompletion=completion.configurations,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value: rounds=50, federation.clients=40, tasks.digits.lr=0.1.",
        autocompletion=completion.settings,
    ),
]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds, run in lockstep.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Out = Annotated[Path | None, typer.Option(help="Run directory; by default a new one in runs/.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Also log to a tracker: tensorboard, mlflow or wandb.",
        autocompletion=completion.trackers,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu or cuda; by default a GPU where there is one.", autocompletion=completion.devices),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show the final table only.")]
AppFile = Annotated[
    Path,
    typer.Argument(
        metavar="APP.py", help="The module with tasks() and data(task, client).", autocompletion=completion.modules
    ),
]
Capacity = Annotated[int | None, typer.Option(help="Number of tasks that each client can train in a round.")]
RootCertificates = Annotated[
    Path | None, typer.Option("--root-certificates", help="ca.crt from the server's keys, to verify the server.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Port on loopback for metrics and health; by default none."),
]


RUNS = Path("runs")
"""Where run directories go if `--out` is not given."""


def default_directory(name: str) -> Path:
    """The run directory where `--out` is not given: a new one in runs/, named after the time and the method."""
    stem = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace('/', '-')}"
    candidates = [stem, *(Path(f"{stem}-{n}") for n in range(2, 100))]
    return next(path for path in candidates if not path.exists())


def split_methods(text: str) -> list[str]:
    """The methods in a list that is separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def worker_options(**options: int | float | str | None) -> dict[str, str]:
    """The options that were given, as a node's worker takes them."""
    return {name: str(value) for name, value in options.items() if value is not None}


def check_minimum(name: str, value: int | None, minimum: int) -> None:
    """Refuses a number that is given and too small."""
    if value is not None and value < minimum:
        raise UserError(f"{name} is {value}; expected at least {minimum}.")
