"""The command that writes a model of a run as a file: export."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmfl.cli import completion
from mmfl.cli.console import say
from mmfl.cli.help import command
from mmfl.errors import UserError, nearest
from mmfl.runs.layout import is_sweep

if TYPE_CHECKING:
    from mmfl.runs.results import Comparison

app = typer.Typer(rich_markup_mode=None)


@command(
    app,
    "mmfl export runs/try --task digits --to digits.onnx",
    "mmfl export runs/try --task digits --to digits.safetensors --weights best",
    "mmfl export runs/try --task digits --to digits.pt --method full --seed 3",
)
def export(
    directory: Annotated[Path, typer.Argument(help="The run directory.", autocompletion=completion.runs)],
    to: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The file: .safetensors or .pt (state dict), .torchscript or .onnx (the model with its operations).",
        ),
    ],
    task: Annotated[str | None, typer.Option(help="The task, where the run has several.")] = None,
    method: Annotated[
        str | None, typer.Option(help="The method, where the run has several.", autocompletion=completion.method)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed, where the run has several.")] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="current, or where the run kept them: best (of the task's best tested round), average (over rounds).",
            autocompletion=completion.weights,
        ),
    ] = "current",
) -> None:
    """Write the trained model of a task as a file.

    It is that of the last checkpoint.
    """
    runs = load_runs(directory)
    chosen = choose("method", method, runs.methods)
    by_seed = {str(run.seed): run for run in runs.of(chosen)}
    run = by_seed[choose("seed", None if seed is None else str(seed), by_seed)]
    name = choose("task", task, run.tasks)
    run.export(name, to, weights)
    say(f"wrote {to}: task {name} of {run.method}, seed {run.seed}, {weights} weights")


def load_runs(path: Path) -> "Comparison":
    """The runs in a directory, a simulation's or a deployment's, with the weights of its last checkpoint."""
    from mmfl.runs.directory import RunDirectory
    from mmfl.runs.trained import load_trained

    if is_sweep(path):
        raise UserError(f"export: '{path}' is a sweep; expected the directory of a run.")
    directory = RunDirectory.open(path)
    config = directory.config()
    if config.get("source") == "deployment":
        from mmfl.deployment.trained import load_deployed

        return load_deployed(directory, config)
    return load_trained(directory, config)


def choose(kind: str, given: str | None, known: Iterable[str]) -> str:
    """The method, seed or task that was given, or the only one there is."""
    names = list(known)
    if given is None and len(names) > 1:
        raise UserError(f"export: the run has the {kind}s {', '.join(names)}; expected --{kind} with one of them.")
    if given is not None and given not in names:
        raise UserError(f"export: the run has no {kind} '{given}': {nearest(given, names)}")
    return names[0] if given is None else given
