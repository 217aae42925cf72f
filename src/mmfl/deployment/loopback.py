"""A whole deployment on this machine, for a trial: SuperLink, nodes and run, on loopback, with nothing left after."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mmfl.deployment import programs
from mmfl.deployment.bundle import SERVER, RunConfig, check_module
from mmfl.deployment.child_processes import ChildProcesses, terminable
from mmfl.deployment.node import WORKER, Node, NodeSpec
from mmfl.deployment.security import Address, Keys, make_keys
from mmfl.deployment.submission import Submission
from mmfl.deployment.superlink import Link, free_port, start_link
from mmfl.errors import UserError
from mmfl.runs.listener import Listener
from mmfl.runs.status import RunEnd

_log = logging.getLogger(__name__)


class Local:
    """The pieces of a deployment on loopback, each of which may be started, ended or killed by itself.

    What the processes print is in `directory/logs`. With `secure` there are certificates and keys as on real machines;
    `spare` more keys are made than nodes are given at the start, for those that join later.
    """

    def __init__(
        self,
        module: Path,
        directory: Path,
        secure: bool = False,
        worker: Sequence[str] = WORKER,
        server: str = SERVER,
        options: Mapping[str, str] | None = None,
        spare: int = 2,
    ):
        programs.require()
        self.module, self.directory = check_module(module), directory.resolve()
        self.secure, self.spare = secure, spare
        self.worker, self.server, self.options = worker, server, options or {}
        self.processes = ChildProcesses(self.directory / "logs")
        self.nodes: list[Node] = []
        self.address = Address("127.0.0.1", free_port())
        self.missed: set[Node] = set()

    def __enter__(self) -> Self:
        self.processes.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.__exit__(kind, error, trace)

    def start(self, clients_of_node: Sequence[Sequence[int]]) -> None:
        """Starts the SuperLink and a node for each list of clients, at the same time."""
        self.keys: Keys | None = None
        if self.secure:
            made = len(clients_of_node) + self.spare
            self.keys = make_keys(self.processes.folder / "keys", ["localhost"], made)
        for clients in clients_of_node:
            self._add(clients)
        control_port = free_port() if self.keys else None
        self.link: Link = start_link(self.processes, self.address, self.keys, control_port=control_port)
        for node in self.nodes:
            node.connect()

    def join(self, clients: Sequence[int]) -> Node:
        """Starts one more node."""
        node = self._add(clients)
        node.connect()
        return node

    def submit(self, settings: Mapping[str, Any], resume: bool = False) -> Submission:
        """Starts a run."""
        config = RunConfig(self.directory, settings, resume)
        return Submission.start(self.link.control, self.module, config, self.server)

    def check(self) -> None:
        """Keeps the nodes going; the run goes on without one that has ended, as it would on real machines."""
        self.link.check()
        for node in self.nodes:
            if node not in self.missed:
                try:
                    node.check()
                except UserError as error:
                    self.missed.add(node)
                    _log.warning("%s", error)
        if self.nodes and len(self.missed) == len(self.nodes):
            raise UserError(f"all nodes ended; their output is in {self.processes.logs}.")

    def _add(self, clients: Sequence[int]) -> Node:
        k = len(self.nodes)
        key = self.keys.node(k) if self.keys else None
        root = self.keys.authority if self.keys else None
        spec = NodeSpec(self.module, clients, self.address, root, key, options=self.options, worker=self.worker)
        node = Node(self.processes, spec, f"node-{k}")
        self.nodes.append(node)
        return node


def deploy_local(
    module: Path,
    clients_of_node: Sequence[Sequence[int]],
    settings: Mapping[str, Any],
    directory: Path,
    *,
    resume: bool = False,
    secure: bool = False,
    options: Mapping[str, str] | None = None,
    listener: Listener | None = None,
    last: int = 0,
    worker: Sequence[str] = WORKER,
    server: str = SERVER,
) -> RunEnd:
    """Runs a deployment on loopback from start to end; `listener` hears of its rounds, of which there are `last`."""
    local = Local(module, directory, secure, worker, server, options, spare=0)
    with terminable(), local:
        local.start(clients_of_node)
        return local.submit(settings, resume).follow(listener, last, local.check)
