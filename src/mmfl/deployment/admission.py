"""Admission: which requests a proxy lets through, and how many connections there may be of whom."""

import binascii
import logging
import ssl
import time
from asyncio import Task
from base64 import b64decode
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmfl.deployment.connection import Head

_MAX_VISITORS = 2000  # connections without a signed request so far
_MAX_VISITORS_OF_ADDRESS = 500
_MAX_OF_KEY = 32  # connections of a node
_MAX_OF_ADDRESS = 1000  # connections of an address where nodes have no keys
_SECONDS_OF_SIGNATURE = 300.0  # that a signature is valid, as in Flower
_SECONDS_OF_DRIFT = 5.0
_SECONDS_BETWEEN_LOOKS = 1.0
_log = logging.getLogger(__name__)


class KeyRing:
    """The public keys of a folder, and the server's certificate; both are read again when they have changed.

    A node signs the time of each of its requests, so whoever can sign has the private key.
    """

    def __init__(self, folder: Path | None, certificate: Path | None, private_key: Path | None):
        self.folder, self.pair = folder, (certificate, private_key)
        self.context = None if certificate is None else ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._names: dict[bytes, tuple[str, Any]] = {}
        self._looked, self._versions = -_SECONDS_BETWEEN_LOOKS, (0, 0)
        self.refresh()

    def refresh(self) -> None:
        """Reads what has changed since the last look, which is at most a second ago."""
        if time.monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        keys = 0 if self.folder is None else self.folder.stat().st_mtime_ns
        certificate = 0 if self.pair[0] is None else self.pair[0].stat().st_mtime_ns
        if self.folder is not None and keys != self._versions[0]:
            self._names = dict(filter(None, map(_read_key, self.folder.glob("*.pub"))))
        if self.context is not None and certificate != self._versions[1]:
            try:
                self.context.load_cert_chain(*self.pair)  # type: ignore[arg-type]
            except (OSError, ssl.SSLError) as error:  # its key may not be there yet
                _log.warning("the certificate cannot be read: %s", error)
                certificate = self._versions[1]
        self._versions = keys, certificate

    def name(self, head: Head) -> str | None:
        """The name of the key that signed a request; None where it is not signed by a key of the folder."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        self.refresh()
        try:
            found = [head.value(b"flwr-" + each) or b"" for each in (b"public-key", b"timestamp", b"signature")]
            name, key = self._names[b64decode(found[0], validate=True)]
            age = (datetime.now(UTC) - datetime.fromisoformat(found[1].decode("ascii"))).total_seconds()
            key.verify(b64decode(found[2], validate=True), found[1], ec.ECDSA(SHA256()))
        except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature):
            return None
        return name if -_SECONDS_OF_DRIFT < age < _SECONDS_OF_SIGNATURE + _SECONDS_OF_DRIFT else None


def _read_key(path: Path) -> tuple[bytes, tuple[str, Any]] | None:
    """The bytes by which Flower names a public key, with its name and the key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError):
        _log.warning("%s is not a public key", path)
        return None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), (path.stem, key)


class Places:
    """Who has a connection. A visitor, who has not shown a key yet, makes room for the next one when there are too many
    of its address or in all: the one that has been there longest is dropped. Nodes never make room for visitors."""

    def __init__(self, has_keys: bool) -> None:
        self.most = _MAX_OF_KEY if has_keys else _MAX_OF_ADDRESS
        self.visitors: dict[Task[None], str] = {}  # their addresses, longest there first
        self.members: dict[Task[None], str] = {}
        self._of_address: Counter[str] = Counter()
        self._of_member: Counter[str] = Counter()

    def enter(self, task: Task[None], address: str) -> None:
        """Takes in a new connection, served by a task, and drops another one if need be."""
        if self._of_address[address] >= _MAX_VISITORS_OF_ADDRESS:
            self._drop(next(each for each, place in self.visitors.items() if place == address))
        elif len(self.visitors) >= _MAX_VISITORS:
            self._drop(next(iter(self.visitors)))
        self.visitors[task] = address
        self._of_address[address] += 1

    def admit(self, task: Task[None], name: str) -> bool:
        """Makes a visitor the node with this name; False if it has too many connections."""
        if self.members.get(task) == name:
            return True
        if self._of_member[name] >= self.most:
            return False
        self.leave(task)
        self.members[task] = name
        self._of_member[name] += 1
        return True

    def leave(self, task: Task[None]) -> None:
        """Forgets a connection."""
        for tasks, counts in ((self.visitors, self._of_address), (self.members, self._of_member)):
            if (who := tasks.pop(task, None)) is not None:
                counts[who] -= 1
                if not counts[who]:
                    del counts[who]

    def _drop(self, task: Task[None]) -> None:
        self.leave(task)
        task.cancel()
