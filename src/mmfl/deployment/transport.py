"""Transport: how payloads travel between the server and the nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Reply:
    """A node's answer to a message, or why there is none."""

    message: str
    payload: bytes | None
    error: str = ""


class Transport(Protocol):
    """Sends payloads to nodes by number, and brings their answers, in any order, when they come.

    `most` is how many bytes an answer may have, where there is a limit.
    """

    most: int | None

    def nodes(self) -> set[int]:
        """Who is connected."""
        ...

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        """Sends each node its payload, to be answered in so many seconds; the node of each message by its name."""
        ...

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The answers to some messages that have come by now; each is given once."""
        ...
