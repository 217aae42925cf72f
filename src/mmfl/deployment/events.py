"""Events: what goes wrong with nodes, and when they join and leave."""

import json
import time
from collections import Counter
from pathlib import Path

_MAX_DETAIL_LENGTH = 300  # characters; a node may have written them


class Events:
    """Writes one line per event to `events.jsonl`, and counts events by kind."""

    def __init__(self, path: Path):
        self.path = path
        self.counts: Counter[str] = Counter()
        self.round = 0

    def add(self, kind: str, node: int | None = None, client: int | None = None, detail: str = "") -> None:
        """Adds an event of the current round."""
        self.counts[kind] += 1
        event = {"time": round(time.time(), 3), "round": self.round, "kind": kind}
        event |= {name: str(value) for name, value in (("node", node), ("client", client)) if value is not None}
        event |= {"detail": detail[:_MAX_DETAIL_LENGTH]} if detail else {}
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def take(self) -> dict[str, int]:
        """The counts by kind since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts
