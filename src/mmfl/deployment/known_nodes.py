"""KnownNodes: the key of each node, and the clients that it may serve, as the operator allows."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ANY = "any"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class NotClientsError(ValueError):
    """A text that is not a list of clients; its value is the part that cannot be read."""


@dataclass(frozen=True)
class ClientNumbers:
    """Numbers of clients, as ranges from first to last.

    >>> ClientNumbers.parse("0, 4-6").numbers()
    [0, 4, 5, 6]
    >>> 1_000 in ClientNumbers.parse("any")
    True
    """

    ranges: Sequence[tuple[int, int]]
    every: bool = False

    @classmethod
    def parse(cls, text: str) -> "ClientNumbers":
        """Reads `any`, or numbers and ranges separated by commas, each client once."""
        if text.strip() == ANY:
            return cls((), every=True)
        found: list[tuple[int, int]] = []
        for part in filter(None, text.replace(" ", "").split(",")):
            match = _RANGE.fullmatch(part)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if first > last or any(first <= end and start <= last for start, end in found):
                raise NotClientsError(part)
            found.append((first, last))
        return cls(tuple(found))

    def __contains__(self, client: int) -> bool:
        return self.every or any(first <= client <= last for first, last in self.ranges)

    def numbers(self) -> list[int]:
        """All of them, in the order in which they were given."""
        return [client for first, last in self.ranges for client in range(first, last + 1)]


class KnownNodes:
    """The nodes that `mmfl link` has registered, read from the file that it writes whenever keys change.

    The file is a table in JSON: Flower's number of each node, with the name of its key and the clients that it may
    serve. Without a file nobody checks keys: every node is welcome, and may serve any client.
    """

    def __init__(self, path: Path | None = None):
        self.path = path
        self._version: tuple[int, int] | None = None
        self._nodes: dict[int, tuple[str, ClientNumbers]] = {}

    def name(self, node: int) -> str:
        """The name of the node's key; its number where that is not known."""
        self._read()
        return self._nodes[node][0] if node in self._nodes else str(node)

    def admits(self, node: int) -> bool:
        """Whether the node's key is registered."""
        self._read()
        return self.path is None or node in self._nodes

    def may_serve(self, node: int, client: int) -> bool:
        """Whether the node's key is allowed to serve a client."""
        return self.admits(node) and (self.path is None or client in self._nodes[node][1])

    def _read(self) -> None:
        if self.path is None:
            return
        try:
            found = self.path.stat()
            version = (found.st_mtime_ns, found.st_ino)
            if version != self._version:
                table = json.loads(self.path.read_text())
                self._nodes = {int(n): (row["key"], ClientNumbers.parse(row["clients"])) for n, row in table.items()}
                self._version = version
        except FileNotFoundError:
            self._nodes = {}
