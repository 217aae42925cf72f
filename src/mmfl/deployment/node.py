"""A node: the worker that holds data and models, and the SuperNode that passes messages to it."""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmfl.deployment import programs
from mmfl.deployment.child_processes import Child, ChildProcesses, check_repeatedly, wait_until
from mmfl.deployment.security import Address
from mmfl.deployment.superlink import free_port
from mmfl.errors import UserError

WORKER = (sys.executable, "-m", "mmfl.deployment.worker")
_MAX_STARTS = 5  # of a worker that keeps dying soon after its start
_STABLE_SECONDS = 60.0  # after which a worker's earlier starts no longer count
_SECONDS_BEFORE_NOTICE = 20.0  # without a connection
_REFUSED = "Failed to activate SuperNode"
_SECONDS_OF_REFUSAL = 90.0  # the server refuses a node that was killed until it has noticed that
_RECONNECT_SECONDS = 2.0


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
                "--root-certificates ca.crt and --key node-K.key (`mmfl keys` makes them), or --insecure."
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
