"""Transport: how payloads travel between the server and its nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Reply:
    """A node's reply to a message; `payload` is None, and `error` says why, where the message failed."""

    message: str
    payload: bytes | None
    error: str = ""


class Transport(Protocol):
    """Sends payloads to nodes, which are known by number, and receives their replies in any order.

    `max_reply_bytes` is the largest reply that gets through; None where there is no limit.
    """

    max_reply_bytes: int | None

    def nodes(self) -> set[int]:
        """The numbers of the connected nodes."""
        ...

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        """Sends each node its payload, with a time limit for the reply; returns the node of each message by its id."""
        ...

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The replies to these messages that have arrived; each reply is returned once."""
        ...
