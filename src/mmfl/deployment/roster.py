"""The roster: which nodes are connected, which clients each of them serves, and the events of nodes that fail."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmfl.deployment.known_nodes import KnownNodes
from mmfl.deployment.payload import InvalidPayloadError, Pair, Payload
from mmfl.deployment.remote_federation import ServerFederation
from mmfl.deployment.versions import Versions
from mmfl.runs.files import append_bounded
from mmfl.runs.layout import MAX_LOG_BYTES

_MAX_DETAIL_LENGTH = 300  # characters; a node may have written them
_MAX_EXAMPLES = 2**40  # that a client may announce
_MAX_TASKS = 1000  # that a client may announce, known to the run or not
_MAX_NAME_LENGTH = 200  # of such a task
_NO_FAULTS = ("joined", "waiting", "control", "changed", "version")


class Events:
    """Writes one line per event to `events.jsonl`, and counts events by kind. Nodes are named by their keys."""

    def __init__(self, path: Path, known: KnownNodes | None = None):
        self.path, self.known = path, known or KnownNodes()
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()  # since the server was started
        self.round = 0

    def add(self, kind: str, node: int | None = None, client: int | None = None, detail: str = "") -> None:
        """Adds an event of the current round."""
        self.counts[kind] += 1
        self.totals[kind] += 1
        event = {"time": round(time.time(), 3), "round": self.round, "kind": kind}
        event |= {} if node is None else {"node": self.known.name(node)}
        event |= {} if client is None else {"client": str(client)}
        event |= {"detail": detail[:_MAX_DETAIL_LENGTH]} if detail else {}
        append_bounded(self.path, json.dumps(event) + "\n", MAX_LOG_BYTES)

    def take_faults(self) -> dict[str, int]:
        """Counts, by kind, of the faults since the last call; what concerns no fault is left out."""
        counts, self.counts = self.counts, Counter()
        return {kind: count for kind, count in counts.items() if kind not in _NO_FAULTS}


@dataclass(frozen=True)
class RosterEntry:
    """A connected node: its clients, each with capacity and examples by task, and its test examples by task. It may
    have tasks that the run does not have, or not yet. `announced` is the fingerprint of all this."""

    clients: dict[int, tuple[int, dict[str, int]]]
    test_examples: dict[str, int]
    announced: str = ""


class Roster:
    """The connected nodes, by number. A client is served by one node at a time, whose key must allow it.

    Another node that announces the same client serves it once the first one has left or stopped replying, as after a
    restart. A node whose message is `unanswered`, although nobody waits for the reply any more, is not relied on until
    it replies.
    """

    def __init__(self, federation: ServerFederation, events: Events, max_examples: int | None = None):
        self.federation, self.events, self.known, self.max_examples = federation, events, events.known, max_examples
        self.nodes: dict[int, RosterEntry] = {}
        self.unanswered: dict[int, str] = {}  # the message to each such node
        self._version_problems: dict[int, str] = {}  # as told last
        self._server: dict[int, int] = {}  # the node that serves a client, or did so last
        self._capped: set[Pair] = set()  # of which an event told that fewer examples count than announced

    def update_connected(self, connected: set[int]) -> set[int]:
        """Removes nodes that have left; returns those that have not been asked yet which clients they have."""
        connected = {node for node in connected if self.known.admits(node)}
        for node in sorted(set(self.nodes) - connected):
            self.events.add("left", node)
            self.forget(node)
        self.assign_clients()
        return connected - set(self.nodes) - set(self.unanswered)

    def forget(self, number: int) -> None:
        """Removes a node, which must then announce its clients again."""
        self.nodes.pop(number, None)
        self.unanswered.pop(number, None)
        self._server = {client: node for client, node in self._server.items() if node != number}

    def register(self, number: int, announcement: Payload) -> None:
        """Enters a node with the clients that it announces; not one whose version the server does not understand."""
        theirs, here = Versions.read(announcement.fields.get("versions")), Versions.here()
        if problem := theirs.why_incompatible(here):
            if self._version_problems.get(number) != problem:
                self._version_problems[number] = problem
                self.events.add("refused", number, detail=problem)
            return
        last = self.federation.clients - 1
        clients, outside, forbidden = {}, [], []
        for (client,), (capacity, sizes) in announcement.table("clients", (int,), (int, dict)).items():
            valid = all(map(_is_count, sizes.values())) and capacity >= 1 and sum(sizes.values()) > 0
            if not valid or len(sizes) > _MAX_TASKS or max(map(len, sizes)) > _MAX_NAME_LENGTH:
                raise InvalidPayloadError(f"client {client} announces {str(sizes)[:200]} with capacity {capacity}")
            if not 0 <= client <= last:
                outside.append(client)
            elif not self.known.may_serve(number, client):
                forbidden.append(client)
            else:
                clients[client] = (capacity, sizes)
        if outside:
            self.events.add("refused", number, outside[0], f"expected a client from 0 to {last}")
        if forbidden:
            self.events.add("refused", number, min(forbidden), "its key may not serve this client, says clients.toml")
        tested = announcement.fields.get("tested", {})
        if not isinstance(tested, dict) or not all(map(_is_count, tested.values())):
            raise InvalidPayloadError("'tested' does not read as a table of numbers")
        self.nodes[number] = RosterEntry(clients, tested, str(announcement.fields.get("announced", "")))
        if difference := theirs.differences(here):
            self.events.add("version", number, detail=difference)
        self.events.add("joined", number, detail=f"clients {', '.join(map(str, sorted(clients)))}")
        self.assign_clients()
        idle = [client for client in sorted(clients) if not any(self._examples(number, client))]
        if idle:
            self.events.add("refused", number, idle[0], "it has none of the run's tasks, or not yet")
        taken = [client for client in sorted(clients) if self._server.get(client) != number and client not in idle]
        if taken:
            self.events.add("refused", number, taken[0], "another node serves it")

    def assign_clients(self) -> None:
        """Assigns clients without a responsive node to one that announced them; updates who is connected."""
        self._server = {client: node for client, node in self._server.items() if self.known.may_serve(node, client)}
        for number in self._responsive():
            for client in self.nodes[number].clients:
                may = self.known.may_serve(number, client)
                if may and self.node_of(client) is None and any(self._examples(number, client)):
                    self._server[client] = number
                    self._announce(number, client)
        self.federation.connected[:] = False
        self.federation.connected[[client for client in self._server if self.node_of(client) is not None]] = True

    def limit_examples(self) -> None:
        """Bounds the numbers of examples that clients announce, and adds an event for each that counts for less."""
        announced, sizes = self.federation.announced, self.federation.limit_sizes(self.max_examples)
        for client, s in np.argwhere(announced > sizes).tolist():
            name = self.federation.task_names[s]
            if (name, client) not in self._capped:
                self._capped.add((name, client))
                detail = f"task '{name}': of {announced[client, s]} examples, {sizes[client, s]} count"
                self.events.add("capped", self._server.get(client), client, detail)

    def announce_again(self) -> None:
        """Enters what the nodes announced once more, since the tasks have changed."""
        for client, number in self._server.items():
            self._announce(number, client)

    def _announce(self, number: int, client: int) -> None:
        self.federation.announce(client, self._examples(number, client), self.nodes[number].clients[client][0])

    def _examples(self, number: int, client: int) -> list[int]:
        """How much a node's client has of each of the run's tasks."""
        sizes = self.nodes[number].clients[client][1]
        return [sizes.get(name, 0) for name in self.federation.task_names]

    def check_announced(self, number: int, announced: object) -> None:
        """Has a node announce its clients again where it no longer has what it announced, as after an upgrade."""
        entry = self.nodes.get(number)
        if entry is not None and entry.announced and announced != entry.announced:
            self.events.add("changed", number, detail="its clients or tasks are others now; it is asked again")
            self.forget(number)

    def node_of(self, client: int) -> int | None:
        """The node that serves a client; None if no responsive node does."""
        number = self._server.get(client)
        return None if number in self.unanswered else number

    def name_of(self, number: int) -> str:
        """What people call a node: the name of its key, or its number."""
        return self.known.name(number)

    def nodes_with_test_data(self, task: str) -> list[int]:
        """The responsive nodes that hold test examples of a task."""
        return [number for number in self._responsive() if self.nodes[number].test_examples.get(task)]

    def _responsive(self) -> list[int]:
        return [number for number in self.nodes if number not in self.unanswered]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_EXAMPLES
