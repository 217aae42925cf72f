"""The commands for keeping runs: status and backup."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from mmfl.cli import completion
from mmfl.cli.console import console, say, show_json, show_rows
from mmfl.cli.help import command
from mmfl.cli.listings import Json
from mmfl.cli.options import RootCertificates
from mmfl.errors import UserError
from mmfl.report.terminal_table import listing
from mmfl.runs.events import Event, read_events
from mmfl.runs.layout import CONFIG
from mmfl.runs.listing import RunSummary, WatchedRun
from mmfl.runs.live import LiveState, read_live

app = typer.Typer(rich_markup_mode=None)
_EVENTS_SHOWN = 10
_SECONDS_BETWEEN_LOOKS = 1.0


@command(
    app,
    "mmfl status runs/try",
    "mmfl status runs/try --watch",
    "mmfl status --server 127.0.0.1:8001",
)
def status(
    run: Annotated[
        Path | None, typer.Argument(help="The run directory.", show_default=False, autocompletion=completion.runs)
    ] = None,
    server: Annotated[str | None, typer.Option(help="host:port of a SuperLink: its runs and nodes.")] = None,
    root_certificates: RootCertificates = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until the run ends, or Ctrl-C.")] = False,
    json_: Json = False,
) -> None:
    """Show how a run or a SuperLink is doing.

    Of a deployment: its nodes and who is late, stage of the round, pace, latest events.
    """
    if (run is None) == (server is None):
        raise UserError("status: expected either a run directory, or --server host:port.")
    if watch and (server or json_):
        raise UserError("status: --watch goes with a run directory, and not with --json.")
    if server is not None:
        return show_server(server, root_certificates, json_)
    assert run is not None
    if not (run / CONFIG).is_file():
        raise UserError(f"'{run}' is not a run directory: it has no {CONFIG}; `mmfl runs` lists runs.")
    watched = WatchedRun(str(run), run)
    if json_:
        return show_json(as_json(watched.look(), read_live(run), read_events(run)))
    if not watch:
        return console.print(page(watched.look(), read_live(run), read_events(run)))
    with Live(console=console, auto_refresh=False) as shown:
        while True:
            summary = watched.look()
            shown.update(page(summary, read_live(run), read_events(run)), refresh=True)
            if summary.condition != "running":
                return None
            time.sleep(_SECONDS_BETWEEN_LOOKS)


@command(app, "mmfl backup runs/try backups/try", "mmfl backup backups/try runs/try")
def backup(
    run: Annotated[Path, typer.Argument(help="The run directory.", autocompletion=completion.runs)],
    to: Annotated[Path, typer.Argument(help="A new directory for the copy.")],
) -> None:
    """Copy a run, at any moment, so that the copy can be resumed."""
    from mmfl.runs.backup import back_up

    round = back_up(run, to)
    say(f"wrote {to}, from which `mmfl resume` goes on after round {round}")


def as_json(summary: RunSummary, live: LiveState | None, events: list[Event]) -> dict[str, Any]:
    """How a run is doing, as JSON values; `deployment` is null for a simulation."""
    return {
        "run": summary.id,
        "state": summary.condition,
        "reason": summary.reason,
        "round": summary.round,
        "rounds": summary.rounds,
        "mean": summary.means,
        "deployment": live.to_json() if live else None,
        "events": [vars(event) for event in events[-_EVENTS_SHOWN:]],
    }


def page(summary: RunSummary, live: LiveState | None, events: list[Event]) -> RenderableType:
    """How a run is doing, for a terminal."""
    means = ", ".join(f"{name} {value:.3f}" for name, value in summary.means.items())
    reason = f" ({summary.reason})" if summary.reason else ""
    lines = [
        f"{summary.id}: {summary.condition}{reason}, {summary.round} of {summary.rounds} rounds done",
        *([f"mean of tasks when last tested: {means}"] if means else []),
    ]
    parts: list[RenderableType] = [Text("\n".join(lines))]
    if live:
        parts += [Text(describe(live, summary.condition == "running")), nodes_table(live)]
    if events:
        parts.append(Text("\n".join(["", "latest events:", *(f"  {event}" for event in events[-_EVENTS_SHOWN:])])))
    return Group(*parts)


def describe(live: LiveState, running: bool) -> str:
    """Stage, pace and clients of a deployment, a line each."""
    out = f", {live.messages_out} of {live.messages_sent} messages out" if live.messages_sent else ""
    left = "" if live.seconds_left is None else f", about {duration(live.seconds_left)} left"
    pace = f"pace: {live.rounds_per_hour:.1f} rounds per hour{left}" if live.round_seconds else "pace: not known yet"
    began = f" for {duration(time.time() - live.stage_began)}" if live.stage_began else ""
    now = [f"round {live.round}: {live.stage}{began}{out}", pace] if running else []
    return "\n".join([*now, f"{live.connected} of {live.clients} clients connected, at {len(live.nodes)} nodes"])


def nodes_table(live: LiveState) -> RenderableType:
    """The nodes, late ones first, and those that have left."""
    table = listing("node", "state", "clients", "since", "last reply")
    for node in live.nodes:
        replied = clock(node.last_reply) if node.last_reply else "none"
        table.add_row(
            escape(node.name), "late" if node.is_late else "connected", node.clients, clock(node.since), replied
        )
    if live.nodes_not_listed:
        table.add_row(f"{live.nodes_not_listed} more", "", "", "", "")
    for gone in live.left:
        table.add_row(escape(gone.name), f"left {clock(gone.left)}", gone.clients, "", "")
    return table


def show_server(server: str, root_certificates: Path | None, as_json: bool) -> None:
    """Shows the runs and nodes that a SuperLink knows."""
    from mmfl.deployment import programs
    from mmfl.deployment.security import Address, check_file

    programs.require_flower()
    root = check_file(root_certificates, "--root-certificates")
    with TemporaryDirectory(prefix="mmfl-") as home:
        control = programs.ControlAPI(Address.parse(server), root, Path(home))
        runs, nodes = control.list_runs(), control.list_nodes()
    if as_json:
        return show_json({"server": server, "runs": runs, "nodes": nodes})
    show_rows(runs, "run", "state", "started", as_json=False)
    show_rows(nodes, "node", "state", "connected since", as_json=False)
    return say(f"{server} answers: {len(runs)} runs, {len(nodes)} nodes")


def clock(seconds: float) -> str:
    """A time of today, or with its date."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def duration(seconds: float) -> str:
    """Seconds in the units that a person would use.

    >>> duration(42), duration(600), duration(9000), duration(400000)
    ('42 s', '10 min', '2 h 30 min', '4 d 15 h')
    """
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
