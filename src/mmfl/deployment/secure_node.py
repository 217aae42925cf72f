"""SecureNode: a node's part in secure aggregation. It masks what it sends, and helps to unmask sums only.

For every sum a node does three things at most, in this order: it sends its masked vector, once; it tells the masks that
it shares with nodes that were lost; it opens the sum over the others. Of any other node it tells either the shared mask
or the share of that node's own mask, never both. So the vector of a single node stays hidden.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from torch import Tensor

from mmfl.deployment.masks import Grid, Words, commitment, derive, keystream, pair_mask, public_text, read_public
from mmfl.deployment.payload import InvalidPayloadError


@dataclass(frozen=True)
class MaskedVector:
    """What a node sends of its vector: masked words, and a share of its own mask for each other node, encrypted.

    `commitment` tells whether the mask was put together correctly from the shares.
    """

    words: Words
    shares: Mapping[str, bytes]
    commitment: str


@dataclass
class _Session:
    """A sum under way: who takes part with which key, the node's share of its own mask, and who was lost."""

    own: str
    keys: Mapping[str, bytes]
    threshold: int
    own_share: bytes
    lost: set[str] = field(default_factory=set)


class SecureNode:
    """A node's key, new in every process, and the sums it takes part in."""

    def __init__(self) -> None:
        self._private = ec.generate_private_key(ec.SECP384R1())
        self.public_key = public_text(self._private)
        self._shared_keys: dict[str, bytes] = {}  # by the other node's public key
        self._sessions: dict[str, _Session | None] = {}  # None: over. A session never comes again

    def mask(
        self, session: str, own: str, public_keys: Mapping[str, str], threshold: int, grid: Grid, vector: Tensor
    ) -> MaskedVector:
        """The vector, masked for a sum over the nodes with these keys, which at least `threshold` of them must open."""
        if public_keys.get(own) != self.public_key:
            raise InvalidPayloadError("for a key that this node does not have: it has been restarted")
        if not 2 <= threshold <= len(public_keys) < 2 * threshold:
            raise InvalidPayloadError(f"to open a sum over {len(public_keys)} nodes with {threshold} of them")
        if session in self._sessions:
            raise InvalidPayloadError("for a sum that this node has sent before")
        secret = os.urandom(32)
        keys = {other: self._shared_key(key) for other, key in public_keys.items() if other != own}
        names = sorted(public_keys)
        shares = dict(zip(names, create_shares(secret, threshold, len(names)), strict=True))
        self._sessions[session] = _Session(own, keys, threshold, shares.pop(own))
        words = grid.round(vector, derive(secret, "rounding"))
        words += keystream(derive(secret, "mask"), len(words), grid.bits)
        words += pair_mask(own, {other: pair_seed(key, session) for other, key in keys.items()}, len(words), grid.bits)
        encrypted = {other: encrypt(keys[other], _sealed(session, own, share)) for other, share in shares.items()}
        return MaskedVector(words, encrypted, commitment(secret))

    def tell_seeds(self, session: str, lost: Sequence[str]) -> dict[str, bytes]:
        """The seeds of the masks that this node shares with lost nodes, so that they can be taken away from the sum."""
        current = self._current(session)
        if not set(lost) <= set(current.keys):
            raise InvalidPayloadError("about nodes that have no part in the sum")
        everyone = current.lost | set(lost)
        if len(current.keys) + 1 - len(everyone) < current.threshold:
            raise InvalidPayloadError("to open a sum over too few nodes")
        current.lost = everyone
        return {other: pair_seed(current.keys[other], session) for other in lost}

    def open(self, session: str, encrypted: Mapping[str, bytes]) -> dict[str, bytes]:
        """This node's shares of the masks of all nodes that are left, given those that the others encrypted for it.

        The nodes that are left are all but those of which it was said that they were lost.
        """
        current = self._current(session)
        if set(encrypted) != set(current.keys) - current.lost:
            raise InvalidPayloadError("to open another sum than the one over the nodes that are left")
        self._sessions[session] = None
        shares = {current.own: current.own_share}
        for other, token in encrypted.items():
            try:
                sealed = decrypt(current.keys[other], token)
            except InvalidToken:
                raise InvalidPayloadError("with a share that cannot be decrypted") from None
            label = _sealed(session, other, b"")
            if not sealed.startswith(label):
                raise InvalidPayloadError("with a share of another sum")
            shares[other] = sealed.removeprefix(label)
        return shares

    def _current(self, session: str) -> _Session:
        current = self._sessions.get(session)
        if current is None:
            raise InvalidPayloadError("about a sum that is over, or that this node has no part in")
        return current

    def _shared_key(self, public_key: str) -> bytes:
        if public_key not in self._shared_keys:
            self._shared_keys[public_key] = generate_shared_key(self._private, read_public(public_key))
        return self._shared_keys[public_key]


def pair_seed(shared_key: bytes, session: str) -> bytes:
    """The seed of the mask that two nodes share in a sum."""
    return derive(shared_key, f"mask of {session}")


def _sealed(session: str, sender: str, share: bytes) -> bytes:
    """A share with what it is for, so that it cannot pass for another."""
    return f"{session} {sender} ".encode() + share
