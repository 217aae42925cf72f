"""A whole deployment on this machine, for a trial: SuperLink, nodes and run, all on loopback."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from mmfl.deployment import programs
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.machines import SuperLink, free_port, start_superlink
from mmfl.deployment.running_node import WORKER, NodeSpec, RunningNode
from mmfl.deployment.security import Address, Keys, make_keys
from mmfl.deployment.submission import Submission
from mmfl.errors import UserError

_log = logging.getLogger(__name__)


class LocalDeployment:
    """A deployment on loopback, whose processes can be started, ended or killed one by one.

    Output of the processes is in `directory/logs`. With `secure` there are certificates and keys as on real machines.
    """

    def __init__(
        self,
        module: Path,
        directory: Path,
        secure: bool = False,
        worker: Sequence[str] = WORKER,
        server: str = programs.SERVER_APP,
        options: Mapping[str, str] | None = None,
    ):
        self.module, self.directory = programs.check_module(module), directory.resolve()
        self.secure, self.worker, self.server, self.options = secure, worker, server, options or {}
        self.processes = ChildProcesses(self.directory / "logs")
        self.nodes: list[RunningNode] = []
        self.address = Address("127.0.0.1", free_port())
        self.ended_nodes: set[RunningNode] = set()

    def __enter__(self) -> Self:
        self.processes.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.__exit__(*error)

    def start(self, clients_of_node: Sequence[Sequence[int]]) -> None:
        """Starts the SuperLink, and a node for each list of clients."""
        self.keys: Keys | None = None
        inner = Address("127.0.0.1", free_port())  # behind a proxy, where nodes wait for messages
        if self.secure:
            allowed = [",".join(map(str, clients)) for clients in clients_of_node]
            self.keys = make_keys(self.processes.folder / "keys", ["localhost"], allowed)
        for clients in clients_of_node:
            self._add(clients)
        self.link: SuperLink = start_superlink(self.processes, self.address, inner, self.keys)
        for node in self.nodes:
            node.connect()

    def join(self, clients: Sequence[int]) -> RunningNode:
        """Starts one more node."""
        node = self._add(clients)
        node.connect()
        return node

    def submit(self, settings: Mapping[str, Any], resume: bool = False) -> Submission:
        """Starts a run."""
        return Submission.start(self.link.control, self.module, self.directory, settings, resume, self.server)

    def check(self) -> None:
        """Checks all processes. The run goes on without a node that has ended, as it would on real machines."""
        self.link.check()
        for node in self.nodes:
            if node not in self.ended_nodes:
                try:
                    node.check()
                except UserError as error:
                    self.ended_nodes.add(node)
                    _log.warning("%s", error)
        if self.nodes and len(self.ended_nodes) == len(self.nodes):
            raise UserError(f"all nodes ended; their output is in {self.processes.logs}.")

    def _add(self, clients: Sequence[int]) -> RunningNode:
        k = len(self.nodes)
        key = self.keys.node_key(k) if self.keys else None
        root = self.keys.authority if self.keys else None
        spec = NodeSpec(self.module, clients, self.address, root, key, options=self.options, worker=self.worker)
        name = f"node-{k}"
        node = RunningNode(self.processes, spec, name, lambda text: _log.warning("%s: %s", name, text))
        self.nodes.append(node)
        return node


def assign_clients(clients: int, nodes: int) -> list[list[int]]:
    """The clients of each node: 0, 1, ... are assigned to the nodes in turn.

    >>> assign_clients(5, 2)
    [[0, 2, 4], [1, 3]]
    """
    return [list(range(clients))[k::nodes] for k in range(nodes)]
