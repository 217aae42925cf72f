"""What runs on a node's machine: a worker that holds data and models, and a SuperNode that passes messages to it."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmfl.deployment import programs
from mmfl.deployment.child_processes import Child, ChildProcesses, check_repeatedly, wait_until
from mmfl.deployment.diagnosis import ConnectionProblem, find_problem
from mmfl.deployment.machines import free_port
from mmfl.deployment.security import Address
from mmfl.deployment.supervision import GrowingPauses
from mmfl.errors import UserError
from mmfl.runs.files import TailReader

WORKER = (sys.executable, "-m", "mmfl.deployment.worker")
_MAX_STARTS = 5  # of a worker that keeps dying soon after its start
_STABLE_SECONDS = 60.0  # after which earlier ends of a process no longer count
_SECONDS_BEFORE_NOTICE = 20.0  # without a connection
_SECONDS_BETWEEN_LOOKS = 5.0  # at what the SuperNode prints
_CONNECTED = re.compile(r"SuperNode ID: (\d+)")
_NO_KEY, _REFUSED = "must be registered", "Failed to activate SuperNode"
_NO_HEARTBEAT = b"Exception in thread"  # after which the SuperNode goes on, but counts as gone


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

    def check_server(self) -> ConnectionProblem | None:
        """What keeps the node from its server for now; raises an error where waiting would not help."""
        problem = find_problem(self.server, self.root)
        if problem and problem.lasting:
            raise UserError(f"node: {problem.text}.")
        return problem

    def command(self, socket: Path) -> list[str]:
        """The worker's command line."""
        command = [*self.worker, "--module", str(self.module), "--socket", str(socket)]
        command += ["--clients", ",".join(str(client) for client in self.clients)]
        return command + [word for name, value in self.options.items() for word in (f"--{name}", value)]


class RunningNode:
    """The processes of a node. `check`, which must be called regularly, starts again what has ended.

    A SuperNode that ends, because the server does not let it in or was restarted without its state, is started again
    after pauses that grow; `say` is told why. What cannot work, such as plaintext where the server wants encryption, is
    an error.
    """

    def __init__(
        self,
        processes: ChildProcesses,
        spec: NodeSpec,
        name: str = "node",
        say: Callable[[str], None] = lambda text: None,
    ):
        self.processes, self.spec, self.name, self.say = processes, spec, name, say
        folder = processes.folder / name
        folder.mkdir(mode=0o700)
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.socket, self.environment = folder / "worker", programs.environment(folder / "home")
        self.starts_left = _MAX_STARTS
        self.pauses = GrowingPauses()
        self._reconnect_at: float | None = None
        self._next_look = 0.0
        self._id: int | None = None
        self.worker = self._start_worker()

    def connect(self) -> None:
        """Waits until the worker is ready, then starts the SuperNode."""
        if problem := self.spec.check_server():
            self.say(problem.text)
        wait_until(self.socket.exists, self.worker, "be ready", say=self.say)
        self._start_supernode()

    @property
    def id(self) -> int | None:
        """The number by which the server knows the node, once it is connected."""
        if self._id is None and (found := _CONNECTED.findall(self.supernode.output())):
            self._id = int(found[-1])
        return self._id

    def check(self) -> None:
        """Starts again what has ended; raises an error when that is of no use."""
        self._check_supernode()
        if self.worker.alive:
            return
        stable = time.monotonic() - self.worker_started > _STABLE_SECONDS
        self.starts_left = _MAX_STARTS if stable else self.starts_left - 1
        if not self.starts_left:
            raise UserError(f"{self.name}: the worker died {_MAX_STARTS} times: {self.worker.error_line()}")
        self.processes.end(self.worker)
        self.worker = self._start_worker()

    def _check_supernode(self) -> None:
        now = time.monotonic()
        if self._reconnect_at is not None:
            if now >= self._reconnect_at:
                self.processes.end(self.supernode)
                self._start_supernode()
        elif not self.supernode.alive:
            self._say_problem(self._problem())
            self._reconnect_at = now + self.pauses.next()
        elif now > self._next_look:
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
            if self.id and now - self.supernode_started > _STABLE_SECONDS:
                self.pauses.reset()
            if any(_NO_HEARTBEAT in line for line in self._printed.new_lines()[0]):
                self.say("the server did not recognise the node any more; connecting again")
                self._reconnect_at = now + self.pauses.next()

    def _problem(self) -> ConnectionProblem:
        """Why the SuperNode has ended."""
        output = self.supernode.output()
        if _NO_KEY in output:
            return ConnectionProblem(
                "the server lets in nodes with a key only; expected --key node-K.key", lasting=True
            )
        if _REFUSED in output:
            text = "the server does not let the node in: its key is not registered there, or another node uses it, "
            return ConnectionProblem(text + "or did until a minute ago; trying again", lasting=False)
        found = find_problem(self.spec.server, self.spec.root)
        return found or ConnectionProblem(
            f"the SuperNode ended ({self.supernode.error_line()}); trying again", lasting=False
        )

    def _say_problem(self, problem: ConnectionProblem | None) -> None:
        """Says what is wrong; raises an error if that will not go away."""
        if problem and problem.lasting:
            raise UserError(f"{self.name}: {problem.text}.")
        if problem:
            self.say(problem.text)

    def _start_supernode(self) -> None:
        spec, now = self.spec, time.monotonic()
        command = programs.supernode(str(spec.server), free_port(), self.socket, spec.root, spec.key, self.programs)
        environment = self.environment | {"PATH": f"{self.programs}{os.pathsep}{self.environment['PATH']}"}
        self._printed = TailReader(self.processes.logs / f"{self.name}-supernode.log")
        self._printed.new_lines()  # of earlier attempts
        self.supernode: Child = self.processes.start(f"{self.name}-supernode", command, environment)
        self.supernode_started, self._reconnect_at, self._id = now, None, None
        self._next_look = now + _SECONDS_BETWEEN_LOOKS

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
        say(f"not connected to {node.spec.server} yet; the output of the attempt is in {node.supernode.log}")
        check_repeatedly(node.check, lambda: node.id)
    while True:
        say(f"connected to {node.spec.server} as node {node.id}")
        check_repeatedly(node.check, lambda: not node.id)
        check_repeatedly(node.check, lambda: node.id)
