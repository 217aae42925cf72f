"""The roster: which nodes are connected, whose clients they are, and who has yet to answer."""

from dataclasses import dataclass, field

from mmfl.flower.events import Events
from mmfl.flower.federation import Announced
from mmfl.flower.wire import GarbageError, Payload


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
            del self.nodes[number]

    def introduce(self, number: int, announcement: Payload) -> None:
        """Takes down what a node says of itself."""
        names = self.federation.task_names
        node = Node()
        for client, capacity, sizes in announcement.rows("clients", int, int, dict):
            if not 0 <= client < self.federation.clients:
                most = self.federation.clients - 1
                self.events.add("refused", number, client, f"expected a client from 0 to {most}")
                continue
            counts = [sizes.get(name, 0) for name in names]
            good = all(type(count) is int and count >= 0 for count in counts) and capacity >= 1 and sum(counts) > 0
            if not good or set(sizes) - set(names):
                raise GarbageError(f"client {client} announces {sizes} with capacity {capacity}")
            node.claims[client] = (capacity, counts)
        tested = announcement.said.get("tested", {})
        if not isinstance(tested, dict) or not all(type(rows) is int and rows >= 0 for rows in tested.values()):
            raise GarbageError("'tested' does not read as a table of numbers")
        node.tested = tested
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
