"""The commands about data: plot."""

from pathlib import Path
from typing import Annotated

import typer

from mmfl.cli.console import console
from mmfl.cli.help import Command, Group, examples
from mmfl.cli.options import ConfigFile, Settings
from mmfl.errors import UserError

app = typer.Typer(
    cls=Group,
    help="Look at data and its partition.",
    epilog=examples("mmfl data plot", "mmfl data plot lvr-3tasks --seed 1"),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    cls=Command,
    epilog=examples("mmfl data plot", "mmfl data plot lvr-3tasks --seed 1", "mmfl data plot experiment.toml --out who"),
)
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
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
