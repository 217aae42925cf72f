"""Versions of server and nodes: which differences are accepted, which are refused, and how that is said."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

import mmfl

PROTOCOL = 1
"""Version of the messages between server and nodes; a change that the other side would not understand raises it."""
OLDEST_PROTOCOL = 1
"""The oldest version of the messages that is still understood."""
_MAX_LENGTH = 40  # characters of a version that someone else tells


@dataclass(frozen=True)
class Versions:
    """What one side runs: the range of protocols that it understands, and packages."""

    protocol: int = 1
    oldest: int = 1
    mmfl: str = "unknown"
    torch: str = "unknown"
    python: str = "unknown"

    @classmethod
    def here(cls) -> "Versions":
        """Those of this process."""
        return cls(PROTOCOL, OLDEST_PROTOCOL, mmfl.__version__, torch.__version__, platform.python_version())

    @classmethod
    def read(cls, told: object) -> "Versions":
        """Those that the other side told; one that tells none is of the first protocol."""
        if not isinstance(told, Mapping):
            return cls()
        numbers = {key: told[key] for key in ("protocol", "oldest") if type(told.get(key)) is int}
        texts = {key: told[key][:_MAX_LENGTH] for key in ("mmfl", "torch", "python") if isinstance(told.get(key), str)}
        return cls(**numbers, **texts)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def why_incompatible(self, server: "Versions") -> str:
        """Why this node cannot work with a server; empty if it can: the ranges of protocols must overlap."""
        ours = f"node: mmfl {self.mmfl}, protocol {self.protocol}"
        sides = f"{ours}; server: mmfl {server.mmfl}, protocol {server.protocol}"
        if self.protocol < server.oldest:
            return f"{sides}; upgrade the node"
        if server.protocol < self.oldest:
            return f"{sides}; upgrade the server, or downgrade the node"
        return ""

    def differences(self, server: "Versions") -> str:
        """What differs from a compatible server and may change results; empty if nothing does."""
        names = [name for name in ("mmfl", "torch") if _release(getattr(self, name)) != _release(getattr(server, name))]
        found = [f"{name} {getattr(self, name)}, the server {getattr(server, name)}" for name in names]
        return f"the node has {' and '.join(found)}" if found else ""


def _release(version: str) -> str:
    """A version without its build: 2.6.0+cpu and 2.6.0+cu124 compute the same functions."""
    return version.partition("+")[0]
