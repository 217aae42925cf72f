"""The commands for the machines of a deployment: link and node."""

from pathlib import Path
from typing import Annotated

import typer

from mmfl.cli.console import say
from mmfl.cli.help import command
from mmfl.cli.options import AppFile, Capacity, Device, MetricsPort, RootCertificates, check_minimum, worker_options
from mmfl.deployment import programs
from mmfl.deployment.child_processes import ChildProcesses, check_repeatedly, exit_on_termination
from mmfl.deployment.known_nodes import ClientNumbers, NotClientsError
from mmfl.deployment.machines import MAX_MESSAGE_BYTES, check_free, control_address, start_superlink
from mmfl.deployment.metrics import link_metrics, node_metrics
from mmfl.deployment.running_node import NodeSpec, RunningNode, serve
from mmfl.deployment.security import Address, Keys, check_file
from mmfl.errors import UserError

app = typer.Typer(rich_markup_mode=None)

Logs = Annotated[Path | None, typer.Option(help="Folder for the output of Flower's processes.")]


@command(app, "mmfl link", "mmfl link 0.0.0.0:8000 --keys keys", "mmfl link 10.0.0.5:8000 --insecure")
def link(
    address: Annotated[str, typer.Argument(help="host:port that nodes connect to.")] = "127.0.0.1:8000",
    keys: Annotated[Path | None, typer.Option(help="Folder made by `mmfl keys make`.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plaintext connections by anybody.")] = False,
    control_port: Annotated[
        int | None, typer.Option(help="Loopback port at which runs are started; by default the next one.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(help=f"Largest message of a node, in megabytes; by default {MAX_MESSAGE_BYTES >> 20}.")
    ] = None,
    state: Annotated[Path, typer.Option(help="Folder that keeps nodes and runs when the link is restarted.")] = Path(
        "link-state"
    ),
    logs: Logs = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Start the server that nodes connect to."""
    programs.require_flower()
    where = Address.parse(address)
    key_folder = Keys.open(keys.resolve()) if keys else None
    check_minimum("--most", most, 1)
    size = None if most is None else most << 20
    inner = control_address(where, key_folder, insecure, control_port, size)
    for each in {where, inner}:
        check_free(each)  # before any folder is made
    with exit_on_termination(), ChildProcesses(logs or Path("logs")) as processes:
        running = start_superlink(processes, where, inner, key_folder, size, state.resolve(), say)
        trust = f" --root-certificates {key_folder.authority}" if key_folder else ""
        registered = f", with {len(key_folder.public_keys)} keys registered" if key_folder else ""
        say(f"nodes connect to {where}{registered}")
        say(f"runs are started on this machine: mmfl deploy APP.py --server {inner}{trust}")
        with link_metrics(metrics_port, processes, key_folder):
            check_repeatedly(running.check)


@command(
    app,
    "mmfl node app.py --clients 0-3",
    "mmfl node app.py --clients 3 --server fed.example.org:8000 \\\n      --root-certificates ca.crt --key node-3.key",
)
def node(
    file: AppFile,
    server: Annotated[str, typer.Option(help="host:port of the server.")] = "127.0.0.1:8000",
    clients: Annotated[str, typer.Option(help="The clients whose data is here: 0,1 or 0-9.")] = "",
    key: Annotated[Path | None, typer.Option(help="This node's private key, from `mmfl keys make`.")] = None,
    root_certificates: RootCertificates = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plaintext to another machine.")] = False,
    capacity: Capacity = None,
    device: Device = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of an update that leaves this node.")] = None,
    noise: Annotated[float | None, typer.Option(help="Gaussian noise on updates, as a multiple of --clip.")] = None,
    sums_only: Annotated[
        bool, typer.Option("--sums-only", help="Send updates in sums over several nodes only: secure aggregation.")
    ] = False,
    logs: Logs = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Start a node, which holds clients' data and trains on it."""
    programs.require_flower()
    check_minimum("--capacity", capacity, 1)
    spec = NodeSpec(
        programs.check_module(file),
        parse_clients(clients),
        Address.parse(server),
        check_file(root_certificates, "--root-certificates"),
        check_file(key, "--key"),
        insecure,
        worker_options(capacity=capacity, device=device, clip=clip, noise=noise)
        | ({"sums-only": "yes"} if sums_only else {}),
    )
    spec.check()
    if clip is not None or noise is not None:
        from mmfl.privacy import Privacy  # imports torch, which this process does without otherwise

        Privacy(clip, noise or 0.0)
    spec.check_server()
    with exit_on_termination(), ChildProcesses(logs or Path("logs")) as processes:
        running = RunningNode(processes, spec, say=say)
        with node_metrics(metrics_port, processes, running):
            running.connect()
            serve(running, say)


def parse_clients(text: str) -> list[int]:
    """The clients in a list of numbers and ranges, each once.

    >>> parse_clients("0,4-6")
    [0, 4, 5, 6]
    """
    try:
        return ClientNumbers.parse(text).numbers()
    except NotClientsError as error:
        raise UserError(
            f"--clients '{text}': '{error}' is not a client, or repeats one; expected numbers such as 0,1 or 0-9."
        ) from None
