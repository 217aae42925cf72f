"""Events: everything out of the ordinary that happens to nodes, in the run's log and counted by kind."""

import json
import time
from collections import Counter
from pathlib import Path

_LONGEST = 300  # replies of a detail, which a node may have written


class Events:
    """A log of a line an event, `events.jsonl`, and counts since they were last taken."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.counts: Counter[str] = Counter()
        self.round = 0

    def add(self, kind: str, node: int | None = None, client: int | None = None, detail: str = "") -> None:
        """Notes an event of the round under way."""
        self.counts[kind] += 1
        told = {"time": round(time.time(), 3), "round": self.round, "kind": kind}
        told |= {name: str(value) for name, value in (("node", node), ("client", client)) if value is not None}
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(told | ({"detail": detail[:_LONGEST]} if detail else {})) + "\n")

    def take(self) -> dict[str, int]:
        """How many of each kind there were since this was last asked."""
        counts, self.counts = dict(self.counts), Counter()
        return counts
