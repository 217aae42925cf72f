"""The commands of a deployment: deploy, link, node and keys, for the command line to mount."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmfl.cli import completion
from mmfl.cli.console import console, say
from mmfl.cli.help import Command, examples
from mmfl.deployment import programs
from mmfl.deployment.bundle import RunConfig, check_module
from mmfl.deployment.child_processes import ChildProcesses, terminable
from mmfl.deployment.node import Node, NodeSpec
from mmfl.deployment.node import serve as serve_node
from mmfl.deployment.security import Address, Keys, check_file, make_keys
from mmfl.deployment.superlink import MAX_MESSAGE_BYTES, Control, check_link, start_link
from mmfl.deployment.superlink import serve as serve_link
from mmfl.errors import UserError

if TYPE_CHECKING:
    from mmfl.runs.listener import Listener
    from mmfl.runs.status import RunEnd

# As in mmfl.cli, whatever imports torch is imported by the functions that need it.

_log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

AppFile = Annotated[
    Path,
    typer.Argument(
        metavar="APP.py", help="The module with tasks() and data(task, client).", autocompletion=completion.modules
    ),
]
Logs = Annotated[Path | None, typer.Option(help="Folder for the output of Flower's processes.")]
Capacity = Annotated[int | None, typer.Option(help="Trainings that each client can do in a round.")]
Device = Annotated[
    str | None,
    typer.Option(help="cpu or cuda; by default a GPU where there is one.", autocompletion=completion.devices),
]
Root = Annotated[
    Path | None, typer.Option("--root-certificates", help="ca.crt of the server's keys, to know the server by.")
]


@app.command(
    cls=Command,
    epilog=examples(
        "mmfl deploy app.py --local 4 --rounds 20 --rate 0.5",
        "mmfl deploy app.py --local 4 --rate 0.5 --secure --set gather=10",
        "mmfl deploy app.py --server 127.0.0.1:8001 --clients 4 --rate 0.5",
    ),
)
def deploy(
    file: AppFile,
    local: Annotated[int | None, typer.Option(help="Try it here: so many nodes on loopback.")] = None,
    server: Annotated[str | None, typer.Option(help="host:port of a SuperLink on this machine (`mmfl link`).")] = None,
    method: Annotated[
        str | None, typer.Option(help="One of `mmfl methods`; by default mmfl-lvr.", autocompletion=completion.method)
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds; by default 100.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Share of the processors that train in a round; by default 0.1.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that it waits for answers; by default 600.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; by default a new one in runs/.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change another setting: seed=3.",
            autocompletion=completion.deployment_settings,
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients 0, 1, ... in all; with --local by default one a node.")
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="With --local: certificates and keys, as on real machines.")
    ] = False,
    root_certificates: Root = None,
    capacity: Capacity = None,
    device: Device = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            help="Log to a tracker as well: tensorboard, mlflow or wandb.",
            autocompletion=completion.trackers,
        ),
    ] = None,
) -> None:
    """Train over real nodes."""
    from mmfl.runs.directory import RunDirectory
    from mmfl.trackers import make_trackers

    programs.require()
    if (local is None) == (server is None):
        raise UserError("deploy: expected either --local K, for a trial on this machine, or --server host:port.")
    where: dict[str, Any] = {"module": str(check_module(file))}
    if server is not None:
        address, root = Address.parse(server), check_file(root_certificates, "--root-certificates")
        if root is None and not address.loopback:
            raise UserError(
                f"deploy at {address}: what does not stay within the machine must be encrypted; expected "
                "--root-certificates ca.crt, or the address on loopback that `mmfl link` says."
            )
        where |= {"server": str(address), **({"root_certificates": str(root)} if root else {})}
        _refuse(secure=secure, capacity=capacity, device=device)
    elif local is not None:
        _at_least("--local", local, 1)
        clients = local if clients is None else clients
        _at_least("--clients", clients, local)
        _at_least("--capacity", 1 if capacity is None else capacity, 1)
        where |= {"local": local, "secure": secure, "options": _options(capacity=capacity, device=device)}
    given = {"clients": clients, "method": method, "rounds": rounds, "rate": rate, "timeout": timeout}
    settings = settings_of(given, set_ or ())
    if track:
        make_trackers(track)  # so that a wrong name is told before anything is made
        where["trackers"] = track
    path = out or _new_directory(settings["method"])
    RunDirectory.create(path, {"source": "deployment", "deployment": where, "settings": settings})
    conduct(path, where, settings)


def resume(directory: Path, values: Mapping[str, Any]) -> None:
    """Goes on with a deployment; `values` is its configuration."""
    programs.require()
    conduct(directory, values["deployment"], values["settings"], resume=True)


def conduct(path: Path, where: Mapping[str, Any], settings: Mapping[str, Any], resume: bool = False) -> None:
    """Runs a deployment in its directory, and shows it."""
    from mmfl.deployment.loopback import deploy_local
    from mmfl.report.display import Display, show_summary
    from mmfl.runs.listener import ListenerGroup
    from mmfl.runs.status import RunEnd
    from mmfl.trackers import make_trackers

    module = check_module(Path(where["module"]))
    nodes = f"{where['local']} nodes on this machine" if "local" in where else f"at {where['server']}"
    budget, text = budget_of(where, settings)
    show_summary(
        console,
        {
            "method": str(settings["method"]),
            "clients": str(settings["clients"]),
            "nodes": nodes,
            "budget": text,
            "rounds": f"{settings['rounds']:,} of at most {settings['timeout']:g} s",
            "run": str(path),
        },
    )
    if budget < 1 and settings["method"] != "full":
        _log.warning("the budget is less than one training a round, so in many rounds nobody trains; raise --rate")
    begun = time.monotonic()
    listener, last = (
        ListenerGroup([Display(console), *make_trackers(where.get("trackers", ()))]),
        int(settings["rounds"]),
    )
    try:
        if "local" in where:
            ended = deploy_local(
                module,
                shares(settings["clients"], where["local"]),
                settings,
                path,
                resume=resume,
                secure=where["secure"],
                options=where["options"],
                listener=listener,
                last=last,
            )
        else:
            root = where.get("root_certificates")
            ended = _at_server(module, Address.parse(where["server"]), root, settings, path, resume, listener)
    except KeyboardInterrupt:
        ended = RunEnd("stopped")
    finish(ended, path, time.monotonic() - begun)


def budget_of(where: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[float, str]:
    """Trainings that a round pays for if all clients are there, in number and in words. How many each can do is said
    here in a trial, and by the nodes otherwise: at least one.

    >>> budget_of({"server": "127.0.0.1:8001"}, {"clients": 40, "rate": 0.1})
    (4.0, '4.0 trainings a round (rate 0.1), or more where clients can do several')
    """
    told = "local" in where
    capacity = int(where["options"].get("capacity", 1)) if told else 1
    budget = settings["rate"] * settings["clients"] * capacity
    more = "" if told else ", or more where clients can do several"
    return budget, f"{budget:.1f} trainings a round (rate {settings['rate']:g}){more}"


def finish(ended: "RunEnd", path: Path, seconds: float) -> None:
    """The results of a run that finished, or what to do with one that did not."""
    if ended.condition == "stopped":
        say(f"\nstopped; go on with: mmfl resume {path}")
        raise typer.Exit(130)
    if ended.condition != "finished":
        logs = path / "logs"
        where = logs if any(logs.glob("superlink*")) else "logs/superlink.log where `mmfl link` runs"
        raise UserError(f"the run failed: {ended.reason}\nWhat was printed is in {where}.")
    from mmfl.report.display import conclude
    from mmfl.runs.results import load

    say(conclude(console, load(path), path, seconds))


@app.command(
    cls=Command,
    epilog=examples("mmfl link", "mmfl link 0.0.0.0:8000 --keys keys", "mmfl link 10.0.0.5:8000 --insecure"),
)
def link(
    address: Annotated[str, typer.Argument(help="host:port that nodes connect to.")] = "127.0.0.1:8000",
    keys: Annotated[Path | None, typer.Option(help="Folder made by `mmfl keys`.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plaintext, open to everybody.")] = False,
    control_port: Annotated[
        int | None, typer.Option(help="Loopback port at which runs are started; by default the next one.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(help=f"Megabytes of a node's message, at most; by default {MAX_MESSAGE_BYTES >> 20}.")
    ] = None,
    logs: Logs = None,
) -> None:
    """Start the server that nodes connect to."""
    programs.require()
    where = Address.parse(address)
    known = Keys.open(keys.resolve()) if keys else None
    _at_least("--most", 1 if most is None else most, 1)
    size = None if most is None else most << 20
    check_link(where, known, insecure, control_port, size)
    with terminable(), ChildProcesses(logs or Path("logs")) as processes:
        running = start_link(processes, where, known, insecure, control_port, size)
        trust = f" --root-certificates {known.authority}" if known else ""
        say(f"nodes connect to {where}" + (f", with {len(known.public)} keys registered" if known else ""))
        say(f"runs are started on this machine: mmfl deploy APP.py --server {running.control.address}{trust}")
        _until_interrupted(lambda: serve_link(running))


@app.command(
    cls=Command,
    epilog=examples(
        "mmfl node app.py --clients 0-3",
        "mmfl node app.py --clients 3 --server fed.example.org:8000 \\\n"
        "      --root-certificates ca.crt --key node-3.key",
    ),
)
def node(
    file: AppFile,
    server: Annotated[str, typer.Option(help="host:port of the server.")] = "127.0.0.1:8000",
    clients: Annotated[str, typer.Option(help="The clients whose data is here: 0,1 or 0-9.")] = "",
    key: Annotated[Path | None, typer.Option(help="This node's private key, from `mmfl keys`.")] = None,
    root_certificates: Root = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plaintext, to another machine.")] = False,
    capacity: Capacity = None,
    device: Device = None,
    clip: Annotated[float | None, typer.Option(help="Longest update that leaves this node.")] = None,
    noise: Annotated[float | None, typer.Option(help="Gaussian noise on updates, as a multiple of --clip.")] = None,
    logs: Logs = None,
) -> None:
    """Hold clients' data, and train when asked."""
    from mmfl.privacy import Privacy

    programs.require()
    _at_least("--capacity", 1 if capacity is None else capacity, 1)
    spec = NodeSpec(
        check_module(file),
        numbers(clients),
        Address.parse(server),
        check_file(root_certificates, "--root-certificates"),
        check_file(key, "--key"),
        insecure,
        _options(capacity=capacity, device=device, clip=clip, noise=noise),
    )
    spec.check()
    Privacy(clip, noise or 0.0)
    with terminable(), ChildProcesses(logs or Path("logs")) as processes:
        running = Node(processes, spec)
        running.connect()
        _until_interrupted(lambda: serve_node(running, say))


@app.command(
    cls=Command,
    epilog=examples(
        "mmfl keys keys --server fed.example.org --nodes 4", "mmfl keys keys --server fed.example.org,10.0.0.5"
    ),
)
def keys(
    folder: Annotated[Path, typer.Argument(help="New folder for certificates and keys.")],
    server: Annotated[str, typer.Option(help="Names or addresses by which nodes reach the server, by commas.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
) -> None:
    """Make certificates and node keys."""
    made = make_keys(folder, [host for host in server.split(",") if host.strip()], nodes)
    say(f"wrote {made.folder}: the server's machine needs it (ca.key is better kept elsewhere);")
    say("node K needs ca.crt and node-K.key of it, and nothing else.")


def settings_of(given: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The settings of a run: options and `key=value` changes, checked before anything is started."""
    from mmfl.deployment.settings import DeploymentSettings
    from mmfl.methods import make_method
    from mmfl.runs import config as configuration

    values = {key: value for key, value in given.items() if value is not None}
    for change in changes:
        configuration.apply(values, change)
    if "clients" not in values:
        raise UserError("deploy: --clients is missing; expected how many clients the nodes hold in all.")
    settings = DeploymentSettings.of(values)
    make_method(settings.method)
    if not 0 < settings.rate <= 1:
        raise UserError(f"rate is {settings.rate}; expected a share of the processors in (0, 1].")
    for name, value, least in (
        ("clients", settings.clients, 1),
        ("rounds", settings.rounds, 1),
        ("seed", settings.seed, 0),
    ):
        _at_least(name, value, least)
    if not settings.timeout > 0:
        raise UserError(f"timeout is {settings.timeout}; expected a number of seconds above 0.")
    return settings.model_dump()


def shares(clients: int, nodes: int) -> list[list[int]]:
    """Clients 0, 1, ... dealt out to nodes in turn.

    >>> shares(5, 2)
    [[0, 2, 4], [1, 3]]
    """
    return [list(range(clients))[k::nodes] for k in range(nodes)]


def numbers(text: str) -> list[int]:
    """Numbers and ranges of them.

    >>> numbers("0,4-6")
    [0, 4, 5, 6]
    """
    found: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UserError(f"--clients '{text}': '{part}' is no client; expected numbers such as 0,1 or 0-9.")
        found += range(int(first), int(last or first) + 1)
    if len(set(found)) < len(found):
        raise UserError(f"--clients '{text}' names a client twice.")
    return found


def _at_server(
    module: Path,
    address: Address,
    root: str | None,
    settings: Mapping[str, Any],
    path: Path,
    resume: bool,
    listener: "Listener",
) -> "RunEnd":
    """A run at a SuperLink that runs already, on this machine."""
    from mmfl.deployment.submission import Submission

    with terminable(), ChildProcesses(path / "logs") as processes:
        control = Control(address, Path(root) if root else None, processes.folder / "home")
        submission = Submission.start(control, module, RunConfig(path, settings, resume))
        try:
            return submission.follow(listener, int(settings["rounds"]))
        except (KeyboardInterrupt, SystemExit):
            submission.abort()
            raise


def _until_interrupted(serve: Callable[[], None]) -> None:
    try:
        serve()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _options(**options: int | float | str | None) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value:
            raise UserError(f"deploy: --{name} goes with --local; with --server each node says it (`mmfl node`).")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{name} is {value}; expected at least {least}.")


def _new_directory(method: str | Mapping[str, Any]) -> Path:
    from mmfl.methods import make_method

    name = make_method(method).name
    stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace('/', '-')}"
    return next(path for path in [stem, *(Path(f"{stem}-{n}") for n in range(2, 100))] if not path.exists())
