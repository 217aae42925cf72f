"""What travels for secure aggregation, in the field `secure` of requests and replies: reading and writing it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from mmfl.deployment.masks import BITS, Grid, from_tensor, to_bytes, to_tensor, to_text
from mmfl.deployment.payload import InvalidPayloadError, Payload
from mmfl.deployment.secure_node import MaskedVector


@dataclass(frozen=True)
class SumPlan:
    """What a node must know to mask its part of a task's sum: which sum, its nodes, and how numbers are rounded."""

    session: str
    nodes: list[str]
    threshold: int
    clip: float
    bits: int
    step: float

    @property
    def grid(self) -> Grid:
        """The grid that all nodes round to."""
        return Grid(self.bits, self.step)

    def write(self) -> dict[str, Any]:
        """As a field."""
        return asdict(self)

    @classmethod
    def read(cls, value: Any) -> "SumPlan":
        """From a field that anyone may have sent."""
        kinds: Mapping[str, type] = {
            "session": str,
            "nodes": list,
            "threshold": int,
            "clip": float,
            "bits": int,
            "step": float,
        }
        if not isinstance(value, dict) or {name: type(each) for name, each in value.items()} != kinds:
            raise InvalidPayloadError("about a sum whose plan cannot be read")
        plan = cls(**value)
        if plan.bits not in BITS or not (plan.clip > 0 and plan.step > 0) or len(set(plan.nodes)) < len(plan.nodes):
            raise InvalidPayloadError("about a sum whose plan makes no sense")
        return plan


def write_masked(reply: Payload, task: str, vector: MaskedVector, clients: list[int]) -> None:
    """Adds a masked vector to a reply; `clients` are those whose updates are in it."""
    reply.vectors[masked_name(task)] = to_tensor(vector.words)
    reply.fields.setdefault("secure", {}).setdefault("masked", {})[task] = {
        "clients": clients,
        "shares": {node: share.decode() for node, share in vector.shares.items()},
        "commitment": vector.commitment,
    }


def read_masked(reply: Payload, task: str, length: int, bits: int) -> tuple[MaskedVector, list[int]]:
    """A masked vector from a reply, and the clients whose updates are in it."""
    given = table(table(secure_field(reply), "masked"), task)
    clients, shares = given.get("clients"), table(given, "shares")
    if not isinstance(clients, list) or not all(type(client) is int for client in clients):
        raise InvalidPayloadError("the clients of a masked sum are not numbers")
    words = from_tensor(reply.vectors.get(masked_name(task), _NOTHING), length, bits)
    encrypted = {node: str(share).encode() for node, share in shares.items()}
    return MaskedVector(words, encrypted, str(given.get("commitment"))), clients


def masked_name(task: str) -> str:
    """The name of a task's masked vector."""
    return f"masked.{task}"


def secure_field(payload: Payload) -> dict[str, Any]:
    """The field `secure`; empty where it is missing."""
    return table(payload.fields, "secure")


def table(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is a table; empty where it is missing."""
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise InvalidPayloadError(f"'{name}' does not read as a table")
    return value


def write_secrets(secrets: Mapping[str, bytes]) -> dict[str, str]:
    """Bytes by node, as a field."""
    return {node: to_text(secret) for node, secret in secrets.items()}


def read_secrets(fields: Mapping[str, Any], name: str, nodes: set[str]) -> dict[str, bytes]:
    """Bytes by node, of exactly these nodes."""
    found = {node: to_bytes(text) for node, text in table(fields, name).items()}
    if set(found) != nodes:
        raise InvalidPayloadError(f"'{name}' is not about the nodes that were asked about")
    return found


_NOTHING = Tensor()
