"""Payloads: what server and nodes say to each other, as bytes: numbers and names in JSON, vectors as safetensors.

Nothing is ever unpickled, and whatever does not read as it should is a `GarbageError`, never a crash.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

_LARGEST = 2**53  # whole numbers below it are floats too


class GarbageError(ValueError):
    """Bytes that are no payload, or a payload that does not say what it should."""


@dataclass(frozen=True, eq=False)
class Payload:
    """What is said, and the vectors that go with it, by name."""

    said: Mapping[str, Any]
    vectors: Mapping[str, Tensor] = field(default_factory=dict)

    def pack(self) -> bytes:
        """As bytes.

        >>> Payload.unpack(Payload({"round": 3}, {"w": torch.ones(2)}).pack()).said
        {'round': 3}
        """
        vectors = {name: vector.detach().cpu().contiguous() for name, vector in self.vectors.items()}
        return save(vectors, {"mmfl": json.dumps(self.said)})

    @classmethod
    def unpack(cls, packed: bytes) -> "Payload":
        """From bytes that may come from anywhere."""
        try:
            vectors = load(packed)
            length = int.from_bytes(packed[:8], "little")
            said = json.loads(json.loads(packed[8 : 8 + length])["__metadata__"]["mmfl"])
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise GarbageError(f"unreadable ({type(error).__name__})") from None
        if not isinstance(said, dict):
            raise GarbageError("unreadable (no table)")
        return cls(said, vectors)

    def vector(self, name: str, length: int) -> Tensor:
        """A vector of so many float32 numbers."""
        if name not in self.vectors:
            raise GarbageError(f"no vector '{name}'")
        vector = self.vectors[name]
        if vector.shape != (length,) or vector.dtype != torch.float32:
            kind = str(vector.dtype).removeprefix("torch.")
            raise GarbageError(f"'{name}' is {kind} {list(vector.shape)}; expected float32 [{length}]")
        return vector

    def rows(self, name: str, *kinds: Any) -> list[tuple[Any, ...]]:
        """A list of rows whose entries are of these kinds; empty where there is none. A float may be written as int, a
        kind may be `float | None`."""
        rows = self.said.get(name, [])
        good = isinstance(rows, list) and all(
            isinstance(row, list) and len(row) == len(kinds) and all(map(_is, row, kinds)) for row in rows
        )
        if not good:
            raise GarbageError(f"'{name}' does not read as a list of {len(kinds)} columns")
        return [tuple(row) for row in rows]


def _is(value: Any, kind: Any) -> bool:
    if kind == (float | None):
        return value is None or _is(value, float)
    if type(value) is int and abs(value) >= _LARGEST:
        return False
    return type(value) in (int, float) if kind is float else type(value) is kind


def print_of(vector: Tensor) -> str:
    """A fingerprint: server and node compare by it whether they remember the same update."""
    return hashlib.blake2b(vector.detach().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()
