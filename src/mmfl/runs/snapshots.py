"""Snapshots: what a checkpoint of a run holds, when one is written, and how a run goes on from it."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mmfl.engine import Engine
from mmfl.errors import UserError
from mmfl.federation import Task
from mmfl.record import RoundRecord
from mmfl.runs import checkpoint
from mmfl.runs.directory import RunDirectory
from mmfl.training import Replica
from mmfl.updates.world import World

_QUICK = 1.0  # seconds that any checkpoint may take


@dataclass
class Snapshot:
    """What a checkpoint holds: the states of all replicas, and the engine's choices, so that the bits stay the same."""

    replicas: list[Any]
    choices: dict[str, str] = field(default_factory=dict, metadata=checkpoint.OWN)


class CheckpointPace:
    """When to write a checkpoint: every so many rounds, but slow ones less often, to spend at most a tenth of the time.

    The stored updates of many methods and seeds can be gigabytes. Which rounds have a checkpoint changes no result.
    """

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic):
        self.every, self.clock = every, clock
        self.cost, self.written = 0.0, clock()

    def due(self, round: int) -> bool:
        """Whether this round gets one."""
        slow = self.cost > _QUICK and self.clock() - self.written < 9 * self.cost
        return round % self.every == 0 and not slow

    def write(self, save: Callable[[], None]) -> None:
        """Writes one, and measures how long that takes."""
        begun = self.clock()
        save()
        self.written = self.clock()
        self.cost = self.written - begun


def fingerprint(replicas: Sequence[Replica]) -> str:
    """Tells one experiment from another: equal only for the same methods, seeds, rate, tasks and partitions.

    Checkpoints do not hold frozen parameters, so tasks are the same only if these are.
    """
    digest, fixed = hashlib.sha256(), cache(Task.fixed_digest)
    for replica in replicas:
        federation = replica.federation
        lengths = [len(weights) for weights in replica.state.weights]
        kept = [store.length for store in replica.state.optimiser if store is not None]
        facts = (replica.method.name, replica.seed, replica.rate, federation.task_names, lengths, kept)
        digest.update(repr(facts).encode())
        digest.update(federation.fixed_bytes())
        digest.update(b"best" if replica.state.best is not None else b"")
        digest.update(b"" if replica.state.average is None else f"average {replica.state.average.setting}".encode())
        digest.update("".join(map(fixed, federation.tasks)).encode())
        for shards in federation.shards:
            digest.update(shards.index.tobytes())
    return digest.hexdigest()


class Mark:
    """The fingerprint of replicas as they are now, computed again only once their rates or tasks have changed."""

    def __init__(self, replicas: Sequence[Replica]):
        self.replicas, self.mark = replicas, ""
        self.known: list[tuple[float, int]] = []

    def __call__(self) -> str:
        """The fingerprint."""
        now = [(replica.rate, len(replica.federation.tasks)) for replica in self.replicas]
        if now != self.known:
            self.known, self.mark = now, fingerprint(self.replicas)
        return self.mark


def save(directory: RunDirectory, mark: str, replicas: Sequence[Replica], engine: Engine) -> None:
    """Writes a checkpoint of the round just finished."""
    snapshot = Snapshot([replica.state for replica in replicas], engine.choices.made)
    with directory.writing():
        if engine.world.first:  # before the checkpoint, after which a finished run is not tested again
            directory.write_last_tests({(each.method.name, each.seed): each.tested for each in replicas})
        checkpoint.write(directory.checkpoints, replicas[0].state.round, mark, snapshot, engine.world)


def restore(directory: RunDirectory, mark: str, replicas: Sequence[Replica], engine: Engine) -> list[RoundRecord]:
    """Restores replicas and engine from the last checkpoint; returns the records up to it and deletes later ones."""
    like = Snapshot([replica.state for replica in replicas])
    found = checkpoint.read(directory.checkpoints, mark, like, engine.world)
    round, snapshot = found or (0, like)
    for replica, state in zip(replicas, snapshot.replicas, strict=True):
        replica.state = state
    engine.choices.made.update(snapshot.choices)
    with end_together(engine.world):
        if not engine.world.first:
            return []
        last_tests = directory.last_tests()
        for replica in replicas:
            last = last_tests.get((replica.method.name, replica.seed), {})
            replica.tested = {task: found for task, found in last.items() if found.round <= round}
        return directory.rewind(round, len(replicas))


@contextmanager
def end_together(world: World) -> Iterator[None]:
    """Passes an error of the first process on to all others, so that all of them end."""
    mistake = ""
    try:
        yield
    except UserError as error:
        mistake = str(error)
    if mistake := world.broadcast(mistake):
        raise UserError(mistake)
