"""Transport by Flower: payloads as its messages, pulled so that no answer is lost and no node holds up the others."""

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from mmfl.deployment.programs import MAX_MESSAGE_BYTES
from mmfl.deployment.transport import Reply

_log = logging.getLogger(__name__)
_SLACK = 10.0  # seconds for which Flower keeps a message after it should have been answered
_WRAPPING = 1 << 16  # bytes of a request beside the payload, at most
_MOMENT = 2.0  # seconds to wait for one pull before the next one is started


class FlowerTransport:
    """Payloads as Flower messages: bytes in a record of configuration.

    Flower deletes an answer when it is pulled for the first time. It also announces an answer before its content has
    arrived, and whoever pulls it waits for the rest, minutes where a node died in the middle. So every message is
    pulled by itself, in a thread of its own, and never by two at once: a pull that takes longer than a moment goes on
    while others are made, and what it brings is delivered then.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        limit = os.environ.get(MAX_MESSAGE_BYTES)
        self.most = int(limit) - _WRAPPING if limit else None
        self._pulls: dict[str, _Pull] = {}

    def nodes(self) -> set[int]:
        """The connected SuperNodes."""
        return set(self.grid.get_node_ids())

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        """A message to each node; Flower forgets it some time after it should have been answered."""
        messages = [
            self.grid.create_message(
                RecordDict({"mmfl": ConfigRecord({"payload": payload})}),
                MessageType.TRAIN,
                node,
                str(round),
                seconds + _SLACK,
            )
            for node, payload in payloads.items()
        ]
        names = self.grid.push_messages(messages)
        return {name: node for name, node in zip(names, payloads, strict=False) if name}

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """Answers and errors that are there."""
        names = dict.fromkeys(messages)
        for name in names:
            if name not in self._pulls:
                pull = self._pulls[name] = _Pull(self.grid, name)
                pull.start()
                pull.join(_MOMENT)
        done = [self._pulls.pop(name) for name in names if not self._pulls[name].is_alive()]
        return [pull.reply for pull in done if pull.reply is not None]


class _Pull(threading.Thread):
    """Pulls the answer to one message; `reply` is None if it is not there yet.

    After an error it tries once more, in case the fault was the SuperLink's. An answer that is gone by then had come,
    but could not be read.
    """

    def __init__(self, grid: Grid, message: str):
        super().__init__(daemon=True)
        self.grid, self.message = grid, message
        self.reply: Reply | None = None

    def run(self) -> None:
        """Pulls."""
        try:
            self.reply = self._pull()
        except Exception as error:
            _log.warning("an answer could not be read (%s)", type(error).__name__)
            self.reply = self._pull_again(error)

    def _pull_again(self, error: Exception) -> Reply | None:
        unreadable = Reply(self.message, b"", type(error).__name__)
        try:
            reply = self._pull()
        except Exception:
            return unreadable
        return unreadable if reply is not None and reply.payload is None else reply

    def _pull(self) -> Reply | None:
        for answer in self.grid.pull_messages([self.message]):
            if answer.metadata.reply_to_message_id == self.message:
                return _letter(self.message, answer)
        return None


def _letter(message: str, answer: Any) -> Reply:
    """Flower's answer to a message as a reply."""
    if answer.has_error():
        return Reply(message, None, f"code {answer.error.code}: {answer.error.reason}")
    try:
        payload = answer.content["mmfl"]["payload"]
    except KeyError:
        payload = b""
    return Reply(message, payload if isinstance(payload, bytes) else b"")
