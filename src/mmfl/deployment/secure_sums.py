"""MaskedSum: the server's part in one secure sum. It collects masked vectors, and what it takes to unmask their sum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from torch import Tensor

from mmfl.deployment.masks import Grid, commitment, derive, keystream, pair_mask
from mmfl.deployment.payload import InvalidPayloadError
from mmfl.deployment.secure_node import MaskedVector


class CannotOpenError(Exception):
    """A sum stays masked; the message says why."""


@dataclass
class MaskedSum:
    """A sum over nodes, of which `threshold` must stay to the end.

    `received` has the masked vectors of the nodes that are `left`; `seeds` those of the masks that nodes (first) share
    with lost ones (second); `shares` of every node's own mask what the others (first) told of it (second).
    """

    session: str
    public_keys: Mapping[str, str]
    threshold: int
    grid: Grid
    length: int
    received: dict[str, MaskedVector] = field(default_factory=dict)
    seeds: dict[tuple[str, str], bytes] = field(default_factory=dict)
    shares: dict[tuple[str, str], bytes] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    def receive(self, node: str, vector: MaskedVector) -> None:
        """Takes a node's masked vector."""
        if set(vector.shares) != set(self.public_keys) - {node}:
            raise InvalidPayloadError("the shares of a mask are not for the nodes of the sum")
        self.received[node] = vector
        self.left.add(node)

    def drop(self, node: str) -> None:
        """Goes on without a node that did not answer in time, although its vector is there."""
        self.left.discard(node)

    def wanted_seeds(self) -> dict[str, list[str]]:
        """Of which lost nodes each node that is left must still tell the mask they share. When it is empty, the sum can
        be opened."""
        lost = set(self.public_keys) - self.left
        missing = {node: sorted(each for each in lost if (node, each) not in self.seeds) for node in sorted(self.left)}
        return {node: others for node, others in missing.items() if others}

    def check_enough(self) -> None:
        """Makes sure that enough nodes are left."""
        if len(self.left) < self.threshold:
            raise CannotOpenError(f"{len(self.left)} of {len(self.public_keys)} nodes are left, under {self.threshold}")

    def shares_for(self, node: str) -> dict[str, bytes]:
        """What the other nodes that are left encrypted for this one."""
        return {other: self.received[other].shares[node] for other in sorted(self.left - {node})}

    def open(self) -> Tensor:
        """The sum over the nodes that are left, in double precision."""
        lost = sorted(set(self.public_keys) - self.left)
        total = None
        for node in sorted(self.left):
            secret = self._secret(node, [self.shares[each] for each in sorted(self.shares) if each[1] == node])
            words = self.received[node].words - keystream(derive(secret, "mask"), self.length, self.grid.bits)
            words -= pair_mask(node, {other: self.seeds[node, other] for other in lost}, self.length, self.grid.bits)
            total = words if total is None else total + words
        assert total is not None  # there are as many nodes as the threshold
        return self.grid.values(total)

    def _secret(self, node: str, shares: Sequence[bytes]) -> bytes:
        """The secret of a node's own mask, from the shares of others."""
        if len(shares) < self.threshold:
            raise CannotOpenError(f"{len(shares)} nodes opened it, under {self.threshold}")
        try:
            secret = combine_shares(list(shares[: self.threshold]))
        except (ValueError, IndexError):
            secret = b""
        if commitment(secret) != self.received[node].commitment:
            raise CannotOpenError("the shares of a mask do not fit together")
        return secret
