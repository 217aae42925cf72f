"""The roster: which nodes are connected, whose clients they are, and who has yet to answer."""

from dataclasses import dataclass, field
from typing import Any

from mmfl.deployment.events import Events
from mmfl.deployment.payload import GarbageError, Payload
from mmfl.deployment.remote_federation import Announced

_MANY = 2**40  # examples; more is no count


@dataclass
class Node:
    """A node: the clients it may speak for, those it asks to speak for besides, and messages it has not answered."""

    clients: set[int] = field(default_factory=set)
    claims: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    tested: dict[str, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)


class Roster:
    """Nodes by number. A client belongs to one node at a time; it is there while that node is connected and answers.

    Another node that claims the client gets it once the first is gone or has fallen silent, as after a restart.
    """

    def __init__(self, federation: Announced, events: Events):
        self.federation, self.events = federation, events
        self.nodes: dict[int, Node] = {}

    def connected(self, now: set[int]) -> set[int]:
        """Forgets nodes that are gone; returns those that have not said who they are."""
        for node in sorted(set(self.nodes) - now):
            self.events.add("left", node)
            del self.nodes[node]
        self.settle()
        return now - set(self.nodes)

    def heard(self, number: int, message: str, answered: bool) -> None:
        """A node answered late; or its message came back, and it must say again who it is."""
        if answered:
            self.nodes[number].waiting.discard(message)
        elif number in self.nodes:
            self.events.add("lost", number)
            self.forget(number)

    def forget(self, number: int) -> None:
        """A node must say again who it is."""
        self.nodes.pop(number, None)

    def introduce(self, number: int, announcement: Payload) -> None:
        """Takes down what a node says of itself."""
        names, last = self.federation.task_names, self.federation.clients - 1
        node, rows = Node(), announcement.rows("clients", int, int, dict)
        for client, capacity, sizes in rows:
            counts = [sizes.get(name, 0) for name in names]
            good = all(map(_is_count, counts)) and capacity >= 1 and sum(counts) > 0
            if not good or set(sizes) - set(names):
                raise GarbageError(f"client {client} announces {str(sizes)[:200]} with capacity {capacity}")
            if 0 <= client <= last:
                node.claims[client] = (capacity, counts)
        outside = [client for client, _, _ in rows if not 0 <= client <= last]
        if outside:
            self.events.add("refused", number, outside[0], f"expected a client from 0 to {last}")
        tested = announcement.said.get("tested", {})
        if not isinstance(tested, dict) or not all(map(_is_count, tested.values())):
            raise GarbageError("'tested' does not read as a table of numbers")
        node.tested = {name: tested[name] for name in names if name in tested}
        self.nodes[number] = node
        self.events.add("joined", number, detail=f"clients {', '.join(map(str, sorted(node.claims)))}")
        self.settle()
        taken = sorted(set(node.claims) - node.clients)
        if taken:
            self.events.add("refused", number, taken[0], "another node speaks for it")

    def settle(self) -> None:
        """Gives clients that nobody speaks for to who claims them, and lets the federation know who is there."""
        spoken = {client: node for node in self.nodes.values() if not node.waiting for client in node.clients}
        for node in self.nodes.values():
            for client, (capacity, counts) in node.claims.items():
                if client not in spoken and not node.waiting:
                    for other in self.nodes.values():
                        other.clients.discard(client)
                    node.clients.add(client)
                    spoken[client] = node
                    self.federation.announce(client, counts, capacity)
        self.federation.here[:] = False
        self.federation.here[list(spoken)] = True

    def node_of(self, client: int) -> int | None:
        """The node that speaks for a client; None if none is there that answers."""
        return next((n for n, node in self.nodes.items() if client in node.clients and not node.waiting), None)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MANY
