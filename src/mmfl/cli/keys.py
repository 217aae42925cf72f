"""The commands for certificates and keys: make, add, revoke and renew."""

from pathlib import Path
from typing import Annotated

import typer

from mmfl.cli.console import say
from mmfl.cli.help import Group, command, examples
from mmfl.deployment.programs import require_flower
from mmfl.deployment.security import Keys, divide_clients, make_keys

app = typer.Typer(
    name="keys",
    cls=Group,
    help="Make and change certificates and keys of nodes.",
    epilog=examples("mmfl keys make keys --server fed.example.org --nodes 4", "mmfl keys revoke keys node-2"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(help="Folder that `mmfl keys make` made.")]


@command(
    app,
    "mmfl keys make keys --server fed.example.org --nodes 4",
    "mmfl keys make keys --server fed.example.org,10.0.0.5",
)
def make(
    folder: Annotated[Path, typer.Argument(help="New folder for certificates and keys.")],
    server: Annotated[str, typer.Option(help="Host names or addresses of the server, separated by commas.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients, divided over the nodes in order; by default one for each.")
    ] = None,
) -> None:
    """Make certificates, and a key for each node."""
    require_flower()
    made = make_keys(folder, [host for host in server.split(",") if host.strip()], divide_clients(clients, nodes))
    say(f"wrote {made.folder}: the server's machine needs it (ca.key is better kept elsewhere);")
    say("node K needs ca.crt and node-K.key of it, and nothing else.")
    say(f"{made.table.name} says which clients each key may serve; change it as you need.")


@command(app, "mmfl keys add keys node-4 --clients 4-7", "mmfl keys add keys clinic --clients any")
def add(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the new key.")],
    clients: Annotated[str, typer.Option(help="The clients that it may serve: 0,1 or 0-9, or any.")],
) -> None:
    """Make a key for one more node; a running link registers it."""
    require_flower()
    private = Keys.open(folder).add(name, clients)
    say(f"wrote {private}: the node needs it, and ca.crt; the server does not.")


@command(app, "mmfl keys revoke keys node-2", "mmfl keys revoke keys clinic")
def revoke(folder: Folder, name: Annotated[str, typer.Argument(help="Name of the key.")]) -> None:
    """Take a node's key back; a running link lets it in no more."""
    require_flower()
    Keys.open(folder).revoke(name)
    say(f"revoked {name}: a running link refuses it from now on.")


@command(app, "mmfl keys renew keys", "mmfl keys renew keys --server fed.example.org --authority-key safe/ca.key")
def renew(
    folder: Folder,
    server: Annotated[str, typer.Option(help="New host names or addresses; by default those of the old one.")] = "",
    authority_key: Annotated[
        Path | None, typer.Option(help="The authority's key, if ca.key is kept elsewhere.")
    ] = None,
) -> None:
    """Make a new certificate for the server, for another year."""
    require_flower()
    keys = Keys.open(folder)
    end = keys.renew([host for host in server.split(",") if host.strip()], authority_key)
    say(f"wrote {keys.certificate}, which is valid until {end:%Y-%m-%d}; nodes see it from their next connection on.")
    say("Start `mmfl link` again before the old one ends: runs are started under the certificate of its start.")
