"""A node: the worker that holds data and models, and the SuperNode that brings it messages."""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmfl.deployment import programs
from mmfl.deployment.child_processes import Child, ChildProcesses, wait_until
from mmfl.deployment.security import Address
from mmfl.deployment.superlink import free_port
from mmfl.errors import UserError

WORKER = (sys.executable, "-m", "mmfl.deployment.worker")
_SECONDS_TO_START = 300.0  # data may have to be loaded
_LIVES = 5  # of a worker that dies again before it has lived for a while
_A_WHILE = 60.0
_LONG = 20.0
_REFUSED = "Failed to activate SuperNode"
_SECONDS_OF_REFUSAL = 90.0  # a node that was killed is let in again only when the server has noticed
_PAUSE = 2.0


@dataclass(frozen=True)
class NodeSpec:
    """What a node is: the user's module, the clients whose data it holds, whom it talks to, and the worker's options
    (`capacity`, `device`)."""

    module: Path
    clients: Sequence[int]
    server: Address
    root: Path | None = None
    key: Path | None = None
    insecure: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    worker: Sequence[str] = WORKER

    def check(self) -> None:
        """Refuses to talk to others in plaintext, unless that was said."""
        if not self.clients:
            raise UserError("node: no clients; expected --clients with their numbers, such as 0,1.")
        if self.root and self.insecure:
            raise UserError("node: both --root-certificates and --insecure were given; expected one of them.")
        if self.key and not self.root:
            raise UserError("node: --key needs --root-certificates, as a key is only shown over an encrypted line.")
        if not self.root and not self.server.loopback and not self.insecure:
            raise UserError(
                f"node: the server at {self.server} is another machine, so the line must be encrypted; expected "
                "--root-certificates ca.crt and --key node-K.key (`mmfl keys` makes them), or --insecure."
            )

    def command(self, socket: Path) -> list[str]:
        """The worker's command line."""
        command = [*self.worker, "--module", str(self.module), "--socket", str(socket)]
        command += ["--clients", ",".join(str(client) for client in self.clients)]
        return command + [word for name, value in self.options.items() for word in (f"--{name}", value)]


class Node:
    """A node that runs. `check` keeps it going, and must be called now and then."""

    def __init__(self, processes: ChildProcesses, spec: NodeSpec, name: str = "node"):
        spec.check()
        self.processes, self.spec, self.name = processes, spec, name
        self.folder = processes.folder / name
        self.folder.mkdir(mode=0o700)
        self.socket = self.folder / "worker"
        self.lives = _LIVES
        self.worker = self._start_worker()

    def connect(self) -> None:
        """Waits until the worker is ready, then starts the SuperNode."""
        wait_until(self.socket.exists, self.worker, _SECONDS_TO_START, "it was ready")
        self.first, self.supernode = time.monotonic(), self._start_supernode()

    @property
    def id(self) -> int | None:
        """The number by which the server knows it, once it is connected."""
        found = re.findall(r"SuperNode ID: (\d+)", self.supernode.output())
        return int(found[-1]) if found else None

    def check(self) -> None:
        """Starts a worker that died anew; raises an error when the node has come to its end."""
        if not self.supernode.alive:
            self._knock_again()
        if self.worker.alive:
            return
        self.lives = _LIVES if time.monotonic() - self.born > _A_WHILE else self.lives - 1
        if not self.lives:
            raise UserError(f"{self.name}: the worker died {_LIVES} times: {self.worker.complaint()}")
        self.processes.forget(self.worker)
        self.worker = self._start_worker()

    def _knock_again(self) -> None:
        """Starts a SuperNode anew that was refused for its key, as one is for a while after a node was killed."""
        if _REFUSED not in self.supernode.output():
            raise UserError(f"{self.name}: the SuperNode ended: {self.supernode.complaint()}")
        if time.monotonic() - self.first > _SECONDS_OF_REFUSAL:
            raise UserError(
                f"{self.name}: the server does not let it in: its key is not registered, or another node uses it."
            )
        self.processes.forget(self.supernode)
        time.sleep(_PAUSE)
        self.supernode = self._start_supernode()

    def end(self) -> None:
        """Takes the node down."""
        for child in (self.supernode, self.worker):
            self.processes.forget(child)

    def _start_supernode(self) -> Child:
        spec = self.spec
        command = programs.supernode(str(spec.server), free_port(), self.socket, spec.root, spec.key)
        return self.processes.start(f"{self.name}-supernode", command, self._environment())

    def _start_worker(self) -> Child:
        self.born = time.monotonic()
        self.socket.unlink(missing_ok=True)
        return self.processes.start(
            f"{self.name}-worker", self.spec.command(self.socket), self._environment(), tied=True
        )

    def _environment(self) -> dict[str, str]:
        return programs.environment(self.folder / "home")


def serve(node: Node, say: Callable[[str], None]) -> None:
    """Keeps a node going until it ends, which is an error, or this process is told to end; says when it is connected,
    and once if it takes long."""
    begun, waiting, silent = time.monotonic(), True, True
    while True:
        node.check()
        if waiting and (number := node.id):
            waiting = False
            say(f"connected to {node.spec.server} as node {number}")
        elif waiting and silent and time.monotonic() - begun > _LONG:
            silent = False
            say(f"not connected to {node.spec.server} yet; its output is in {node.supernode.log}")
        time.sleep(0.2)
