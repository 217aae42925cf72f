"""The command that trains over real nodes: deploy."""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmfl.cli import completion
from mmfl.cli.console import console, say
from mmfl.cli.help import command
from mmfl.cli.options import (
    AppFile,
    Capacity,
    Device,
    MetricsPort,
    Out,
    RootCertificates,
    Track,
    check_minimum,
    default_directory,
    worker_options,
)
from mmfl.deployment import metrics, programs
from mmfl.deployment.child_processes import exit_on_termination
from mmfl.deployment.security import Address, check_file
from mmfl.errors import UserError

if TYPE_CHECKING:
    from mmfl.runs.listener import Listener
    from mmfl.runs.status import RunEnd

_log = logging.getLogger(__name__)
app = typer.Typer(rich_markup_mode=None)


@command(
    app,
    "mmfl deploy app.py --local 4 --rounds 20 --rate 0.5",
    "mmfl deploy app.py --local 4 --rate 0.5 --secure --set gather=10",
    "mmfl deploy app.py --server 127.0.0.1:8001 --clients 4 --rate 0.5",
)
def deploy(
    file: AppFile,
    local: Annotated[int | None, typer.Option(help="Trial on this machine, with this number of nodes.")] = None,
    server: Annotated[str | None, typer.Option(help="host:port of a SuperLink on this machine (`mmfl link`).")] = None,
    method: Annotated[
        str | None, typer.Option(help="One of `mmfl methods`; by default forecast.", autocompletion=completion.method)
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds; by default 100.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Share of the processors that train in a round; by default 0.1.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait for replies; by default 600.")] = None,
    out: Out = None,
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
        int | None, typer.Option(help="Number of clients in all; with --local by default one per node.")
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="With --local: use certificates and keys, as on real machines.")
    ] = False,
    root_certificates: RootCertificates = None,
    capacity: Capacity = None,
    device: Device = None,
    track: Track = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Train over real nodes."""
    from mmfl.methods import make_method
    from mmfl.runs.directory import RunDirectory
    from mmfl.trackers import make_trackers

    programs.require_flower()
    if (local is None) == (server is None):
        raise UserError("deploy: expected either --local K, for a trial on this machine, or --server host:port.")
    where: dict[str, Any] = {"module": str(programs.check_module(file))}
    if server is not None:
        address, root = Address.parse(server), check_file(root_certificates, "--root-certificates")
        if root is None and not address.loopback:
            raise UserError(
                f"deploy at {address}: a connection to another machine must be encrypted; expected "
                "--root-certificates ca.crt, or the address on loopback that `mmfl link` prints."
            )
        where |= {"server": str(address), **({"root_certificates": str(root)} if root else {})}
        for name, value in (("secure", secure), ("capacity", capacity), ("device", device)):
            if value:
                raise UserError(f"deploy: --{name} goes with --local; with --server, give it to `mmfl node`.")
    elif local is not None:
        check_minimum("--local", local, 1)
        clients = local if clients is None else clients
        check_minimum("--clients", clients, local)
        check_minimum("--capacity", capacity, 1)
        where |= {"local": local, "secure": secure, "options": worker_options(capacity=capacity, device=device)}
    given = {"clients": clients, "method": method, "rounds": rounds, "rate": rate, "timeout": timeout}
    settings = read_settings(given, set_ or ())
    if track:
        make_trackers(track)  # refuses a wrong name before anything is written
        where["trackers"] = track
    if metrics_port is not None:
        metrics.check_port(metrics_port)
        where["metrics_port"] = metrics_port
    path = out or default_directory(make_method(settings["method"]).name)
    config = {"source": "deployment", "deployment": where, "settings": settings}
    RunDirectory.create(path, config)
    path.chmod(0o700)  # checkpoints may have every client's last update
    run_deployment(path, config)


def run_deployment(path: Path, config: Mapping[str, Any], resume: bool = False) -> None:
    """Runs or resumes a deployment in its run directory; shows a summary, progress and results.

    The table `deployment` of the configuration says where: the module, and the server or the local nodes.
    """
    from mmfl.report.display import Display, show_summary
    from mmfl.runs.listener import ListenerGroup
    from mmfl.runs.status import RunEnd
    from mmfl.trackers import make_trackers

    programs.require_flower()
    where, settings = config["deployment"], config["settings"]
    module = programs.check_module(Path(where["module"]))
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
    started = time.monotonic()
    listener = ListenerGroup([Display(console), *make_trackers(where.get("trackers", ()))])
    try:
        with exit_on_termination(), metrics_of_run(where.get("metrics_port"), path):
            outcome = _deploy(module, where, settings, path, resume, listener)
    except KeyboardInterrupt:
        outcome = RunEnd("stopped")
    show_outcome(outcome, path, time.monotonic() - started)


def metrics_of_run(port: int | None, path: Path) -> AbstractContextManager[None]:
    """While active, serves the metrics of a run at a port, if there is one."""
    return metrics.serving_metrics(port, lambda: metrics.run_samples(path), lambda: metrics.why_run_is_not_ready(path))


def budget_of(where: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[float, str]:
    """The trainings that a round can pay for while all clients are connected, as a number and as text.

    With `--local` the clients' capacity is known; otherwise the nodes announce it later, and it is at least one.

    >>> budget_of({"server": "127.0.0.1:8001"}, {"clients": 40, "rate": 0.1})
    (4.0, '4.0 trainings a round (rate 0.1), or more where clients can do several')
    """
    known = "local" in where
    capacity = int(where["options"].get("capacity", 1)) if known else 1
    budget = settings["rate"] * settings["clients"] * capacity
    more = "" if known else ", or more where clients can do several"
    return budget, f"{budget:.1f} trainings a round (rate {settings['rate']:g}){more}"


def show_outcome(outcome: "RunEnd", path: Path, seconds: float) -> None:
    """Shows the results of a run that finished, or what to do about one that did not."""
    from mmfl.deployment.submission import ServerLost

    if outcome.condition == "stopped":
        say(f"\nstopped; go on with: mmfl resume {path}")
        raise typer.Exit(130)
    if outcome.condition != "finished":
        logs = path / "logs"
        where = logs if any(logs.glob("superlink*")) else "logs/superlink.log where `mmfl link` runs"
        further = f" Go on with: mmfl resume {path}" if isinstance(outcome, ServerLost) else ""
        raise UserError(f"the run failed: {outcome.reason}\nWhat was printed is in {where}.{further}")
    from mmfl.report.display import conclude
    from mmfl.runs.results import load

    say(conclude(console, load(path), path, seconds))


def read_settings(given: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The settings of a run: options and `key=value` changes, checked before anything is started."""
    from mmfl.deployment.settings import DeploymentSettings
    from mmfl.methods import make_method
    from mmfl.runs import config as configuration

    values = {key: value for key, value in given.items() if value is not None}
    for change in changes:
        configuration.apply(values, change)
    settings = DeploymentSettings.of(values)
    make_method(settings.method)
    return settings.model_dump(exclude_none=True)


def _deploy(
    module: Path, where: Mapping[str, Any], settings: Mapping[str, Any], path: Path, resume: bool, listener: "Listener"
) -> "RunEnd":
    """Runs over nodes that are started and ended with the run, or at the SuperLink of `mmfl link` on this machine.

    A new run that cannot be started leaves no directory behind, unless the error names a log in it.
    """
    from mmfl.deployment.loopback import LocalDeployment, assign_clients
    from mmfl.deployment.submission import Submission

    submission: Submission | None = None
    try:
        if "local" in where:
            with LocalDeployment(module, path, where["secure"], options=where["options"]) as local:
                local.start(assign_clients(settings["clients"], where["local"]))
                submission = local.submit(settings, resume)
                return submission.follow(listener, local.check)
        root = where.get("root_certificates")
        with TemporaryDirectory(prefix="mmfl-") as home:
            control = programs.ControlAPI(Address.parse(where["server"]), Path(root) if root else None, Path(home))
            submission = Submission.start(control, module, path, settings, resume)
            try:
                return submission.follow(listener)
            except (KeyboardInterrupt, SystemExit):
                submission.abort()
                raise
    except UserError as error:
        if submission is None and not resume and str(path.resolve() / "logs") not in str(error):
            shutil.rmtree(path, ignore_errors=True)
        raise
