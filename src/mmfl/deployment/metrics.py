"""Metrics and health of the processes of a deployment, over HTTP on loopback, for Prometheus and for supervisors.

`/metrics` is Prometheus's text format (version 0.0.4). `/healthz` answers while the process lives; `/readyz` answers
200 once it can do its work, and 503 with the reason until then.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.running_node import RunningNode
from mmfl.deployment.security import Keys
from mmfl.errors import UserError
from mmfl.runs.live import LiveState, read_live
from mmfl.runs.status import read as read_status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_SECONDS = 10.0  # in which a request must have arrived


@dataclass(frozen=True)
class Family:
    """Samples of the same name: `kind` is gauge or counter; `labels` are those that each sample has."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


FAMILIES = {
    "mmfl_run_running": Family("gauge", "1 while the server of the run works, else 0."),
    "mmfl_run_round": Family("gauge", "The round under way."),
    "mmfl_run_rounds": Family("gauge", "The number of the last round."),
    "mmfl_run_clients": Family("gauge", "Clients that may take part."),
    "mmfl_run_connected_clients": Family("gauge", "Clients that are connected."),
    "mmfl_run_connected_nodes": Family("gauge", "Nodes that are connected."),
    "mmfl_run_late_nodes": Family("gauge", "Connected nodes with an unanswered message that nobody waits for."),
    "mmfl_run_unanswered_messages": Family("gauge", "Messages of the stage under way without a reply."),
    "mmfl_run_last_round_duration_seconds": Family("gauge", "How long the last round took."),
    "mmfl_run_updated_timestamp_seconds": Family("gauge", "When the server last wrote its live state."),
    "mmfl_run_events_total": Family("counter", "Events since the server was started.", ("kind",)),
    "mmfl_run_node_last_reply_timestamp_seconds": Family("gauge", "When a node last replied.", ("node",)),
    "mmfl_process_up": Family("gauge", "1 while a process of this command runs, else 0.", ("process",)),
    "mmfl_process_resident_memory_bytes": Family("gauge", "Memory of a process.", ("process",)),
    "mmfl_ready": Family("gauge", "1 if /readyz answers 200, else 0."),
    "mmfl_node_clients": Family("gauge", "Clients whose data the node holds."),
    "mmfl_link_registered_keys": Family("gauge", "Node keys that are registered."),
}


@dataclass(frozen=True)
class Sample:
    """A value of a family."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def exposition(samples: Iterable[Sample]) -> str:
    """The samples in Prometheus's text format, family by family.

    >>> print(exposition([Sample("mmfl_ready", 1)]), end="")
    # HELP mmfl_ready 1 if /readyz answers 200, else 0.
    # TYPE mmfl_ready gauge
    mmfl_ready 1.0
    """
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, found in by_name.items():
        lines += [f"# HELP {name} {FAMILIES[name].help}", f"# TYPE {name} {FAMILIES[name].kind}"]
        for sample in found:
            labels = ",".join(f'{label}="{_escape(value)}"' for label, value in sample.labels.items())
            lines.append(f"{name}{f'{{{labels}}}' if labels else ''} {float(sample.value)!r}")
    return "".join(f"{line}\n" for line in lines)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def run_samples(directory: Path) -> list[Sample]:
    """Of a run, from its live state."""
    live, status = read_live(directory) or LiveState(), read_status(directory)
    values = {
        "running": float(status is not None and status.condition == "running"),
        "round": live.round,
        "rounds": live.rounds,
        "clients": live.clients,
        "connected_clients": live.connected,
        "connected_nodes": len(live.nodes) + live.nodes_not_listed,
        "late_nodes": sum(node.is_late for node in live.nodes),
        "unanswered_messages": live.messages_out,
        "last_round_duration_seconds": live.last_round_seconds,
        "updated_timestamp_seconds": live.updated,
    }
    samples = [Sample(f"mmfl_run_{name}", value) for name, value in values.items()]
    samples += [Sample("mmfl_run_events_total", count, {"kind": kind}) for kind, count in live.events.items()]
    name = "mmfl_run_node_last_reply_timestamp_seconds"
    return samples + [Sample(name, node.last_reply, {"node": node.name}) for node in live.nodes]


def why_run_is_not_ready(directory: Path) -> str:
    """Empty if the server of a run is at work and has clients."""
    status, live = read_status(directory), read_live(directory)
    if status is None or status.condition != "running":
        return "the server of the run is not running"
    return "" if live and live.connected else "no client is connected"


def process_samples(processes: ChildProcesses) -> list[Sample]:
    """Of each process that a command has started."""
    samples = []
    for child in processes.children:
        label = {"process": child.name}
        samples.append(Sample("mmfl_process_up", float(child.alive), label))
        samples.append(Sample("mmfl_process_resident_memory_bytes", resident_bytes(child.process.pid), label))
    return samples


def why_ended(processes: ChildProcesses) -> str:
    """Empty if all processes that a command has started are running."""
    ended = [child.name for child in processes.children if not child.alive]
    return f"{', '.join(ended)} ended" if ended else "" if processes.children else "nothing has started yet"


def resident_bytes(pid: int) -> int:
    """The memory of a process on Linux; 0 where that is not known."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    return 0


@contextmanager
def serving_metrics(
    port: int | None, samples: Callable[[], list[Sample]], why_not_ready: Callable[[], str]
) -> Iterator[None]:
    """While active, answers at a port of loopback; without a port it does nothing."""
    if port is None:
        yield
        return
    with MetricsServer(port, samples, why_not_ready) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def check_port(port: int) -> None:
    """Refuses a port that cannot be used, before anything is written."""
    MetricsServer(port, list, str).server_close()


def link_metrics(port: int | None, processes: ChildProcesses, keys: Keys | None) -> AbstractContextManager[None]:
    """While active, serves the metrics of a link at a port, if there is one."""

    def samples() -> list[Sample]:
        registered = 0 if keys is None else len(Keys(keys.folder).public_keys)
        return [*process_samples(processes), Sample("mmfl_link_registered_keys", registered)]

    return serving_metrics(port, samples, lambda: why_ended(processes))


def node_metrics(port: int | None, processes: ChildProcesses, node: RunningNode) -> AbstractContextManager[None]:
    """While active, serves the metrics of a node at a port, if there is one; the node may not have connected yet."""

    def samples() -> list[Sample]:
        return [*process_samples(processes), Sample("mmfl_node_clients", len(node.spec.clients))]

    def why_not_ready() -> str:
        connected = hasattr(node, "supernode") and node.id is not None
        return why_ended(processes) or ("" if connected else f"not connected to {node.spec.server} yet")

    return serving_metrics(port, samples, why_not_ready)


class MetricsServer(ThreadingHTTPServer):
    """Answers GET requests for /metrics, /healthz and /readyz."""

    daemon_threads = True

    def __init__(self, port: int, samples: Callable[[], list[Sample]], why_not_ready: Callable[[], str]):
        if not 0 < port < 65536:
            raise UserError(f"--metrics-port is {port}; expected 1 to 65535.")
        self.samples, self.why_not_ready = samples, why_not_ready
        try:
            super().__init__(("127.0.0.1", port), MetricsRequest)
        except OSError as error:
            raise UserError(f"--metrics-port {port} cannot be used: {error.strerror}.") from None

    def server_bind(self) -> None:
        """As the library does, without asking the network for this machine's name: there may be none."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def answer(self, path: str) -> tuple[int, str]:
        """Status and text."""
        problem = self.why_not_ready()
        if path == "/metrics":
            return 200, exposition([*self.samples(), Sample("mmfl_ready", float(not problem))])
        if path == "/healthz":
            return 200, "alive\n"
        if path == "/readyz":
            return (503, f"not ready: {problem}\n") if problem else (200, "ready\n")
        return 404, "expected /metrics, /healthz or /readyz\n"


class MetricsRequest(BaseHTTPRequestHandler):
    """A request; the host that is asked for must be loopback, so that no web site can read it through a browser."""

    server: MetricsServer
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answers."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        status, text = (
            self.server.answer(self.path) if host in ("127.0.0.1", "localhost") else (403, "expected 127.0.0.1\n")
        )
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no log of requests."""
