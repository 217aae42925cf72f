"""Payloads: the content of messages between server and nodes. Fields travel as JSON, vectors as safetensors.

Nothing is ever unpickled. Whatever cannot be read raises an `InvalidPayloadError`, and nothing else.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

Pair = tuple[str, int]
"""A task and a client."""
_MAX_INTEGER = 2**53  # smaller ones are exact as floats, too


class InvalidPayloadError(ValueError):
    """Bytes that are not a payload, or a payload without the expected content."""


@dataclass(frozen=True, eq=False)
class Payload:
    """The content of a message: fields that JSON can hold, and named vectors."""

    fields: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, part: str, *row: Any) -> None:
        """Adds a row to one part of a request, such as `losses` or `train`."""
        self.fields.setdefault(part, []).append(list(row))

    def pack(self) -> bytes:
        """The payload as bytes.

        >>> Payload.unpack(Payload({"round": 3}, {"w": torch.ones(2)}).pack()).fields
        {'round': 3}
        """
        vectors = {name: vector.detach().cpu().contiguous() for name, vector in self.vectors.items()}
        return save(vectors, {"mmfl": json.dumps(self.fields)})

    @classmethod
    def unpack(cls, packed: bytes) -> "Payload":
        """Reads a payload from bytes that anyone may have sent."""
        try:
            vectors = load(packed)
            length = int.from_bytes(packed[:8], "little")
            fields = json.loads(json.loads(packed[8 : 8 + length])["__metadata__"]["mmfl"])
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidPayloadError(f"unreadable ({type(error).__name__})") from None
        if not isinstance(fields, dict):
            raise InvalidPayloadError("unreadable (no table)")
        return cls(fields, vectors)

    def vector(self, name: str, length: int) -> Tensor:
        """The named vector; it must be float32 and of this length."""
        if name not in self.vectors:
            raise InvalidPayloadError(f"no vector '{name}'")
        vector = self.vectors[name]
        if vector.shape != (length,) or vector.dtype != torch.float32:
            kind = str(vector.dtype).removeprefix("torch.")
            raise InvalidPayloadError(f"'{name}' is {kind} {list(vector.shape)}; expected float32 [{length}]")
        return vector

    def rows(self, name: str, *kinds: Any) -> list[tuple[Any, ...]]:
        """A field that is a list of rows; empty where it is missing. `kinds` are the types of the columns.

        A whole number is accepted as a float; a kind may be `float | None`.
        """
        rows = self.fields.get(name, [])
        valid = isinstance(rows, list) and all(
            isinstance(row, list) and len(row) == len(kinds) and all(map(_is_of_kind, row, kinds)) for row in rows
        )
        if not valid:
            raise InvalidPayloadError(f"'{name}' does not read as a list of {len(kinds)} columns")
        return [tuple(row) for row in rows]

    def table(self, name: str, keys: tuple[Any, ...], kinds: tuple[Any, ...]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """A field of rows, by their first columns, of the types `keys`; refuses two rows with the same ones."""
        rows = self.rows(name, *keys, *kinds)
        table = {row[: len(keys)]: row[len(keys) :] for row in rows}
        if len(table) < len(rows):
            raise InvalidPayloadError(f"'{name}' has two rows about the same")
        return table


def _is_of_kind(value: Any, kind: Any) -> bool:
    if kind == (float | None):
        return value is None or _is_of_kind(value, float)
    if type(value) is int and abs(value) >= _MAX_INTEGER:
        return False
    return type(value) in (int, float) if kind is float else type(value) is kind


def fingerprint(vector: Tensor) -> str:
    """A short hash by which server and node find out whether they remember the same update."""
    return hashlib.blake2b(vector.detach().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()
