"""Mail by Flower: payloads as its messages, fetched so that no node can keep the server from its other mail."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from mmfl.flower.mail import Letter
from mmfl.flower.programs import MOST

_log = logging.getLogger(__name__)
_SLACK = 10.0  # seconds for which Flower keeps a message after it should have been answered
_WRAPPING = 1 << 16  # bytes of a request beside the payload, at most
_MOMENT = 2.0  # seconds that a look into the mailbox may take


class FlowerMail:
    """Payloads as Flower messages: bytes in a record of configuration.

    Flower announces an answer before its content has arrived, and whoever fetches it waits for the rest, minutes where
    a node died in the middle. So a thread fetches, which is left to itself when it takes longer than a moment.
    """

    def __init__(self, grid: Grid):
        self.grid, self.singly = grid, False
        limit = os.environ.get(MOST)
        self.most = int(limit) - _WRAPPING if limit else None
        self._come: dict[str, Letter] = {}
        self._looks: list[_Look] = []

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

    def receive(self, messages: Iterable[str]) -> list[Letter]:
        """Answers and errors that are there. Once one could not be read, or kept us waiting, they are fetched one by
        one, so that such a one takes no other with it."""
        names = list(messages)
        if not self.singly:
            self._look([names])
        if self.singly:
            self._looks = [look for look in self._looks if look.is_alive()]
            fetched = {name for look in self._looks if len(look.at) == 1 for name in look.at}
            self._look([[name] for name in names if name not in self._come and name not in fetched])
        return [self._come.pop(name) for name in names if name in self._come]

    def _look(self, batches: Sequence[Sequence[str]]) -> None:
        """Fetches what is there, for a moment at most; what takes longer comes in time."""
        look = _Look(self._fetch, batches)
        look.start()
        look.join(_MOMENT)
        if look.is_alive():
            look.overtaken = self.singly = True
            self._looks.append(look)

    def _fetch(self, names: Sequence[str]) -> None:
        """Puts those of these answers that are there beside the others that have come."""
        try:
            found = [letter for each in self.grid.pull_messages(names) if (letter := _letter(names, each))]
        except Exception as error:
            _log.warning("an answer could not be read (%s)", type(error).__name__)
            self.singly = True
            found = [Letter(names[0], b"", type(error).__name__)] if len(names) == 1 else []
        self._come.update((letter.message, letter) for letter in found)


class _Look(threading.Thread):
    """A look into the mailbox, batch after batch; one that was `overtaken` ends with the batch it is `at`."""

    def __init__(self, fetch: Callable[[Sequence[str]], None], batches: Sequence[Sequence[str]]):
        super().__init__(daemon=True)
        self.fetch, self.batches = fetch, batches
        self.at: Sequence[str] = ()
        self.overtaken = False

    def run(self) -> None:
        """Fetches."""
        for batch in self.batches:
            if self.overtaken:
                break
            self.at = batch
            self.fetch(batch)


def _letter(names: Sequence[str], message: Any) -> Letter | None:
    """The answer to one of some messages; None where it is to another."""
    name = message.metadata.reply_to_message_id
    if name not in names:
        return None
    if message.has_error():
        return Letter(name, None, f"code {message.error.code}: {message.error.reason}")
    try:
        payload = message.content["mmfl"]["payload"]
    except KeyError:
        return Letter(name, b"")
    return Letter(name, payload if isinstance(payload, bytes) else b"")
