"""What runs on the machines of a deployment: the SuperLink that nodes connect to, and each node's processes.

Where other machines can reach it, the SuperLink is behind a proxy. A node has a worker that holds data and models, and
a SuperNode that passes messages to it.
"""

import logging
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmfl.deployment import programs
from mmfl.deployment.child_processes import Child, ChildProcesses, check_repeatedly, wait_until
from mmfl.deployment.registration import Registrations
from mmfl.deployment.security import Address, Keys
from mmfl.errors import UserError

_log = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 1 << 29  # of a node's message, by default
WORKER = (sys.executable, "-m", "mmfl.deployment.worker")
_PROXY = Path(__file__).with_name("proxy.py")
_MAX_STARTS = 5  # of a worker that keeps dying soon after its start
_STABLE_SECONDS = 60.0  # after which a worker's earlier starts no longer count
_SECONDS_BEFORE_NOTICE = 20.0  # without a connection
_REFUSED = "Failed to activate SuperNode"
_SECONDS_OF_REFUSAL = 90.0  # the server refuses a node that was killed until it has noticed that
_RECONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink, at which runs are started through `control`."""

    control: programs.ControlAPI
    children: Sequence[Child]
    registrations: Registrations | None = None

    def check(self) -> None:
        """Raises an error if the SuperLink or its proxy has ended; registers and revokes keys that have changed."""
        for change in self.registrations.update_if_changed() if self.registrations else ():
            _log.warning("%s", change)
        for child in self.children:
            if not child.alive:
                raise UserError(f"{child.name} ended: {child.error_line()}")


def control_address(
    address: Address, keys: Keys | None, insecure: bool, control_port: int | None = None, max_bytes: int | None = None
) -> Address:
    """The address at which runs are started; refuses plaintext to other machines unless `insecure` is set."""
    if (keys is not None) == insecure and (insecure or not address.loopback):
        raise UserError(
            f"link on {address}: where other machines can reach it, it needs certificates and node keys; expected "
            "either --keys DIR (`mmfl keys make` makes them), or --insecure to do without."
        )
    if keys is None and address.loopback:
        if control_port is not None or max_bytes is not None:
            raise UserError(f"link on {address}: --control-port and --most are for its proxy, which needs --keys DIR.")
        return address
    control = Address("127.0.0.1", address.port + 1 if control_port is None else control_port)
    if not 0 < control.port < 65536 or control.port == address.port:
        raise UserError(
            f"link on {address}: --control-port is {control.port}; expected 1 to 65535, and not where nodes connect."
        )
    return control


def start_superlink(
    processes: ChildProcesses,
    address: Address,
    inner: Address,
    keys: Keys | None = None,
    max_bytes: int | None = None,
) -> SuperLink:
    """Starts a SuperLink at `inner`, which accepts the nodes whose public keys are in `keys`; runs are started there.

    If nodes connect to another `address`, a proxy passes on their messages, of at most `max_bytes` bytes.
    """
    size = str(max_bytes or MAX_MESSAGE_BYTES)
    for each in {address, inner}:
        _check_free(each)
    home = processes.folder / "link"
    table = processes.folder / "nodes.json"
    limit = {} if inner == address else {programs.MAX_BYTES_VARIABLE: size}
    limit |= {programs.NODES_VARIABLE: str(table)} if keys else {}
    superlink = processes.start("superlink", programs.superlink(inner, keys), programs.environment(home) | limit)
    wait_until(lambda: _listens(inner), superlink, "it listened")
    control = programs.ControlAPI(inner, keys.authority if keys else None, home)
    registrations = Registrations(control, keys, table) if keys else None
    if registrations:
        registrations.update()
    if inner == address:
        return SuperLink(control, [superlink], registrations)
    command = [sys.executable, "-P", str(_PROXY), "--host", address.host, "--port", str(address.port)]
    command += ["--prefix", programs.FLEET, "--target-host", inner.host, "--target-port", str(inner.port)]
    command += ["--max-bytes", size]
    if keys:
        command += ["--certificate", str(keys.certificate), "--key", str(keys.server_key)]
        command += ["--authority", str(keys.authority), "--keys", str(keys.folder)]
    proxy = processes.start("proxy", command, programs.environment(home))
    wait_until(lambda: _listens(address), proxy, "it listened")
    return SuperLink(control, [superlink, proxy], registrations)


@dataclass(frozen=True)
class NodeSpec:
    """The configuration of a node: the user's module, the clients whose data it holds, and how it reaches the server.

    `options` are those of the worker, such as `capacity` and `device`.
    """

    module: Path
    clients: Sequence[int]
    server: Address
    root: Path | None = None
    key: Path | None = None
    insecure: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    worker: Sequence[str] = WORKER

    def check(self) -> None:
        """Refuses contradictory options, and plaintext to other machines unless `insecure` is set."""
        if not self.clients:
            raise UserError("node: no clients; expected --clients with their numbers, such as 0,1.")
        if self.key and not self.root:
            raise UserError("node: --key needs --root-certificates, as a key is only shown over an encrypted line.")
        if bool(self.root) == self.insecure and (self.insecure or not self.server.loopback):
            raise UserError(
                f"node: a line to another machine ({self.server}) must be encrypted; expected either "
                "--root-certificates ca.crt and --key node-K.key (`mmfl keys make` makes them), or --insecure."
            )

    def command(self, socket: Path) -> list[str]:
        """The worker's command line."""
        command = [*self.worker, "--module", str(self.module), "--socket", str(socket)]
        command += ["--clients", ",".join(str(client) for client in self.clients)]
        return command + [word for name, value in self.options.items() for word in (f"--{name}", value)]


class RunningNode:
    """The processes of a node. `check` restarts what died, and must be called regularly."""

    def __init__(self, processes: ChildProcesses, spec: NodeSpec, name: str = "node"):
        self.processes, self.spec, self.name = processes, spec, name
        folder = processes.folder / name
        folder.mkdir(mode=0o700)
        self.socket, self.environment = folder / "worker", programs.environment(folder / "home")
        self.starts_left = _MAX_STARTS
        self.worker = self._start_worker()

    def connect(self) -> None:
        """Waits until the worker is ready, then starts the SuperNode."""
        wait_until(self.socket.exists, self.worker, "it was ready")
        self.first_attempt, self.supernode = time.monotonic(), self._start_supernode()

    @property
    def id(self) -> int | None:
        """The number by which the server knows the node, once it is connected."""
        found = re.findall(r"SuperNode ID: (\d+)", self.supernode.output())
        return int(found[-1]) if found else None

    def check(self) -> None:
        """Restarts a worker that died, and a SuperNode that was refused; raises an error when that is of no use."""
        if not self.supernode.alive:
            self._reconnect()
        if self.worker.alive:
            return
        stable = time.monotonic() - self.worker_started > _STABLE_SECONDS
        self.starts_left = _MAX_STARTS if stable else self.starts_left - 1
        if not self.starts_left:
            raise UserError(f"{self.name}: the worker died {_MAX_STARTS} times: {self.worker.error_line()}")
        self.processes.end(self.worker)
        self.worker = self._start_worker()

    def _reconnect(self) -> None:
        """Restarts a SuperNode whose key was refused, as happens for a while after a node was killed."""
        if _REFUSED not in self.supernode.output():
            raise UserError(f"{self.name}: the SuperNode ended: {self.supernode.error_line()}")
        if time.monotonic() - self.first_attempt > _SECONDS_OF_REFUSAL:
            raise UserError(
                f"{self.name}: the server does not let it in: its key is not registered, or another node uses it."
            )
        self.processes.end(self.supernode)
        time.sleep(_RECONNECT_SECONDS)
        self.supernode = self._start_supernode()

    def _start_supernode(self) -> Child:
        spec = self.spec
        command = programs.supernode(str(spec.server), free_port(), self.socket, spec.root, spec.key)
        return self.processes.start(f"{self.name}-supernode", command, self.environment)

    def _start_worker(self) -> Child:
        self.worker_started = time.monotonic()
        self.socket.unlink(missing_ok=True)
        return self.processes.start(f"{self.name}-worker", self.spec.command(self.socket), self.environment)


def serve(node: RunningNode, say: Callable[[str], None]) -> None:
    """Keeps a node running until it fails, which raises an error, or this process is asked to end.

    Says when the node is connected, and once if that takes long.
    """
    deadline = time.monotonic() + _SECONDS_BEFORE_NOTICE
    check_repeatedly(node.check, lambda: node.id or time.monotonic() > deadline)
    if not node.id:
        say(f"not connected to {node.spec.server} yet; its output is in {node.supernode.log}")
        check_repeatedly(node.check, lambda: node.id)
    say(f"connected to {node.spec.server} as node {node.id}")
    check_repeatedly(node.check)


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_free(address: Address) -> None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise UserError(f"link cannot listen at {address}: {error.strerror}.") from None


def _listens(address: Address) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    try:
        socket.create_connection((host, address.port), timeout=1).close()
    except OSError:
        return False
    return True
