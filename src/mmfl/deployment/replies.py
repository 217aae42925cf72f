"""Replies: what nodes answer, read with suspicion, and what of it becomes updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmfl.deployment.payload import GarbageError, Payload
from mmfl.engine import Training
from mmfl.updates import Trained
from mmfl.updates.world import SINGLE_PROCESS

Pair = tuple[str, int]
ABSURD = 1e30
_ROUNDING = 1e-3


@dataclass(frozen=True, eq=False)
class Row:
    """One client's training as its node tells it; `update` is None where the node kept it."""

    client: int
    loss: float
    steps: int
    norm: float
    inner: float | None
    update: Tensor | None = None

    def problem(self, length: int, longest: float, before: Tensor | None) -> str:
        """What cannot be right about it, beside the client's last update where that counts; empty if nothing is known
        to be wrong."""
        if not abs(self.loss) <= ABSURD:
            return f"the loss is {self.loss}"
        if self.steps < 1:
            return f"{self.steps} steps"
        update = self.update
        if update is not None and (update.shape != (length,) or update.dtype != torch.float32):
            return f"the update is {str(update.dtype).removeprefix('torch.')} {list(update.shape)}"
        norm = self.norm if update is None else float(update.norm())
        if not np.isfinite(norm) or norm < 0:
            return "the update is not finite"
        if norm > longest:
            return f"the update has length {norm:.3g}, over {longest:.3g}"
        if update is None and before is not None:
            most = norm * float(before.norm())
            if self.inner is None or not abs(self.inner) <= most * (1 + _ROUNDING) + _ROUNDING:
                return f"the product with the last update is {self.inner}, over {most:.3g}"
        return ""

    def compared(self, before: Tensor | None) -> "Row":
        """With the norm, and the product with the client's last update, of the update that came; as told without it."""
        if self.update is None:
            return self
        inner = None if before is None else float((self.update * before).sum())
        return replace(self, norm=float(self.update.norm()), inner=inner)


@dataclass(frozen=True, eq=False)
class Kept(Trained):
    """What nodes trained, of which they may have kept a part; `rows` is the same, client by client."""

    rows: Sequence[Row] = ()
    training: Training | None = None

    @classmethod
    def of(cls, training: Training, rows: Sequence[Row]) -> "Kept":
        """As arrays."""
        here = np.array([n for n, row in enumerate(rows) if row.update is not None], dtype=np.int64)
        updates = [row.update for row in rows if row.update is not None]
        return cls(
            np.array([row.client for row in rows], dtype=np.int64),
            torch.stack(updates) if updates else torch.empty(0, len(training.weights)),
            np.array([row.loss for row in rows], dtype=np.float64),
            np.array([row.steps for row in rows], dtype=np.int64),
            None if len(here) == len(rows) else here,
            SINGLE_PROCESS,
            np.array([row.norm for row in rows], dtype=np.float64),
            None if training.remembered is None else np.array([row.inner or 0.0 for row in rows], dtype=np.float64),
            tuple(rows),
            training,
        )


class Replies:
    """What nodes answered in one exchange, by task and client."""

    def __init__(self) -> None:
        self.losses: dict[str, dict[int, float]] = {}
        self.trained: dict[Pair, Row] = {}
        self.tests: dict[str, list[tuple[int, float, float]]] = {}
        self.updates: dict[Pair, Tensor] = {}
        self.missing: list[tuple[int | None, str]] = []

    def read(self, asked: Mapping[str, Any], payload: Payload) -> None:
        """A node's answer to what it was asked. Anything else in it makes all of it garbage."""
        pairs = {part: {(row[0], row[1]) for row in asked.get(part, [])} for part in ("losses", "train", "collect")}
        losses = payload.rows("losses", str, int, float)
        trained = payload.rows("trained", str, int, float, int, float, float | None)
        collected = payload.rows("collected", str, int)
        tests = payload.rows("tests", str, int, float, float)
        for part, rows in (("losses", losses), ("train", trained), ("collect", collected)):
            stranger = next((row for row in rows if (row[0], row[1]) not in pairs[part]), None)
            if stranger is not None:
                raise GarbageError(f"answers for task '{stranger[0]}' and client {stranger[1]}, which was not asked")
        vectors = {f"update.{name}.{client}": (name, client) for name, client in pairs["train"] | pairs["collect"]}
        if stray := set(payload.vectors) - set(vectors):
            raise GarbageError(f"has a vector '{sorted(stray)[0]}', which was not asked for")
        for name, client, loss in losses:
            if abs(loss) <= ABSURD:
                self.losses.setdefault(name, {})[client] = float(loss)
            else:
                self.missing.append((client, f"task '{name}': the loss is {loss}"))
        told = {"losses": losses, "train": trained, "collect": collected}
        for part, what in (("losses", "loss"), ("train", "training"), ("collect", "update")):
            for name, client in sorted(pairs[part] - {(row[0], row[1]) for row in told[part]}):
                self.missing.append((client, f"task '{name}': no {what} in the answer"))
        self.updates |= {vectors[name]: vector for name, vector in payload.vectors.items()}
        for name, client, loss, steps, norm, inner in trained:
            update = self.updates.get((name, client))
            self.trained[(name, client)] = Row(client, float(loss), steps, float(norm), inner, update)
        tested = {name for (name,) in map(tuple, asked.get("test", []))}
        for name, count, loss, metric in tests:
            if name in tested and count > 0 and abs(loss) <= ABSURD and abs(metric) <= ABSURD:
                self.tests.setdefault(name, []).append((count, float(loss), float(metric)))
            else:
                self.missing.append((None, f"task '{name}': a test of {count} examples with loss {loss}"))
