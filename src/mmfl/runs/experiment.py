"""Experiment: methods x seeds on a federation, conducted in lockstep, with or without a run directory."""

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmfl.checks import check, check_memory, check_whole, is_positive, is_whole
from mmfl.engine import Engine
from mmfl.errors import UserError, check_name
from mmfl.federation import Federation
from mmfl.methods import Method
from mmfl.runs import checkpoint
from mmfl.runs.results import Comparison, Run, RunDirectory, made_with
from mmfl.runs.status import Journal
from mmfl.training import Record, Replica, rounds
from mmfl.updates.world import World

_QUICK = 1.0  # seconds that any checkpoint may take
_RECORD_BYTES = 1000  # of a round's record for each task, at least


@dataclass(frozen=True, eq=False)
class Experiment:
    """What to run: every method with every seed, each pair a replica of its own.

    `federation_of` gives the federation of a seed: the same for all, or partitioned anew for each. Models are tested
    every `evaluate_every` rounds, and after each of the `evaluate_last` last ones.
    """

    federation_of: Callable[[int], Federation]
    methods: Sequence[Method]
    seeds: Sequence[int]
    rounds: int
    rate: float = 0.1
    evaluate_every: int = 1
    evaluate_last: int = 1
    checkpoint_every: int = 10
    diagnose: bool = False

    def __post_init__(self) -> None:
        right = is_positive(self.rate) and self.rate <= 1
        check(right, "", "rate", self.rate, "a share of the processors in (0, 1]")
        for name in ("rounds", "evaluate_every", "evaluate_last", "checkpoint_every"):
            check_whole("", name, getattr(self, name))
        for name in ("methods", "seeds"):
            if not len(getattr(self, name)):
                raise UserError(f"no {name} given; expected at least one.")
        for seed in self.seeds[:1] if isinstance(self.seeds, range) else self.seeds:
            check(is_whole(seed, 0), "", "seed", seed, "a whole number, 0 or above")
        names = [method.name for method in self.methods]
        for name in names:
            check_name("method", name)
        for kind, values in (("methods", names), ("seeds", self.seeds)):
            if not isinstance(values, range) and len(set(values)) < len(values):
                raise UserError(f"{kind} {list(values)} repeat one; each may be given once.")

    def check_memory(self, federation: Federation) -> None:
        """Refuses more replicas than the machine has memory for, judging by the federation of the first seed."""
        parameters = sum(sum(p.numel() for p in task.build().parameters()) for task in federation.tasks)
        pairs = federation.clients * len(federation.tasks)
        records = self.rounds * len(federation.tasks) * _RECORD_BYTES
        replicas = len(self.methods) * len(self.seeds)
        each = 4.0 * parameters + 8.0 * pairs + records
        check_memory(f"{replicas:,} runs (methods x seeds)", replicas * each)


class Listener:
    """Hears what an experiment does; the command line's display is one, a tracker is another."""

    def opened(self, directory: RunDirectory) -> None:
        """Called before `begin` where the run has a directory, which holds the earlier records of a resumed one."""

    def begin(self, replicas: Sequence[Replica], first: int, last: int) -> None:
        """Called before the first round that is run."""

    def round(self, records: Sequence[Record]) -> None:
        """Called after every round, with a record per replica."""

    def end(self) -> None:
        """Called when the experiment stops, for whatever reason."""


@dataclass(frozen=True)
class ListenerGroup(Listener):
    """Tells several listeners, in their order."""

    listeners: Sequence[Listener]

    def opened(self, directory: RunDirectory) -> None:
        """Tells each."""
        for listener in self.listeners:
            listener.opened(directory)

    def begin(self, replicas: Sequence[Replica], first: int, last: int) -> None:
        """Tells each."""
        for listener in self.listeners:
            listener.begin(replicas, first, last)

    def round(self, records: Sequence[Record]) -> None:
        """Tells each."""
        for listener in self.listeners:
            listener.round(records)

    def end(self) -> None:
        """Tells each."""
        for listener in self.listeners:
            listener.end()


@dataclass
class Snapshot:
    """What a checkpoint holds: the states of all replicas, and the engine's choices, for the same bits again."""

    replicas: list[Any]
    choices: dict[str, str] = field(default_factory=dict)


class Pace:
    """When to write a checkpoint: every so many rounds, but large ones rarer, so that they take a tenth of the time.

    ClientVectorStore updates of many methods and seeds can be gigabytes. Which rounds have a checkpoint changes no result.
    """

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic):
        self.every, self.clock = every, clock
        self.cost, self.written = 0.0, clock()

    def due(self, round: int) -> bool:
        """Whether this round gets one."""
        slow = self.cost > _QUICK and self.clock() - self.written < 9 * self.cost
        return round % self.every == 0 and not slow

    def write(self, save: Callable[[], None]) -> None:
        """Writes one, and sees how long it takes."""
        begun = self.clock()
        save()
        self.written = self.clock()
        self.cost = self.written - begun


def conduct(
    experiment: Experiment,
    engine: Engine,
    open_directory: Callable[[], RunDirectory] | None = None,
    resume: bool = False,
    listener: Listener | None = None,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Runs all replicas to the last round, writing metrics and checkpoints to a directory on the way.

    The directory is opened once everything else is known to be in order, so that a mistake leaves none behind. No other
    process can work on it meanwhile.

    With `resume` it goes on from the last good checkpoint, to the same result as if it had never stopped. Ctrl-C stops
    after the round that is under way, with a checkpoint, and so does `asked_to_stop`; a second one stops at once.

    Where several processes share the run, the first one opens the directory, writes the metrics and is listened to.
    """
    world = engine.world
    listener = listener if listener and world.first else Listener()
    replicas = start(experiment, engine)
    records: list[Record] = []
    mark = fingerprint(replicas)
    last = experiment.rounds
    pace = Pace(experiment.checkpoint_every)
    with (
        open_together(open_directory, world) as directory,
        Journal(directory.path if directory and world.first else None, last) as journal,
    ):
        if directory and resume:
            records = restore(directory, mark, replicas, engine)
        first = replicas[0].state.round + 1
        versions = made_with(getattr(engine, "device", None))
        journal.begin(first - 1, described(experiment, world), ", ".join(map(" ".join, versions.items())))
        if directory:
            listener.opened(directory)
        with heard(listener, replicas, first, last, None if resume else directory), interruptible() as interrupted:
            happened = rounds(
                replicas, engine, last, experiment.evaluate_every, experiment.evaluate_last, experiment.diagnose
            )
            for t, fresh in enumerate(happened, first):
                records += fresh
                stop = world.any(interrupted.is_set() or asked_to_stop())
                if directory:
                    if world.first:
                        directory.append(fresh)
                    journal.round(t)
                    if world.any(pace.due(t)) or t == last or stop:
                        pace.write(partial(save, directory, mark, replicas, engine))
                        journal.note(f"checkpoint after round {t}")
                listener.round(fresh)
                if stop and t < last:
                    raise KeyboardInterrupt
    return comparison(replicas, records)


def described(experiment: Experiment, world: World) -> str:
    """What is run, on a line."""
    methods, seeds = ", ".join(method.name for method in experiment.methods), len(experiment.seeds)
    several = f", {world.size} processes" if world.size > 1 else ""
    return f"{methods}; {experiment.rounds} rounds x {seeds} seed{'s' if seeds > 1 else ''}{several}"


@contextmanager
def heard(
    listener: Listener, replicas: Sequence[Replica], first: int, last: int, fresh: RunDirectory | None = None
) -> Iterator[None]:
    """Tells a listener that the experiment begins and, for whatever reason, that it ends. Where the listener refuses,
    nothing is left of a `fresh` directory."""
    try:
        listener.begin(replicas, first, last)
    except UserError:
        if fresh:
            fresh.remove()
        raise
    try:
        yield
    finally:
        listener.end()


@contextmanager
def open_together(open_directory: Callable[[], RunDirectory] | None, world: World) -> Iterator[RunDirectory | None]:
    """The run's directory, opened and locked by the first process and told to the others; a mistake ends them all."""
    if open_directory is None:
        yield None
        return
    with ExitStack() as lock:
        directory, mistake = None, ""
        if world.first:
            try:
                directory = open_directory()
                lock.enter_context(directory.hold())
            except UserError as error:
                mistake = str(error)
        mistake = world.said_by_first(mistake)
        if mistake:
            raise UserError(mistake)
        path = world.said_by_first(str(directory.path) if directory else "")
        yield directory or RunDirectory(Path(path))


def start(experiment: Experiment, engine: Engine) -> list[Replica]:
    """All replicas before their first round: for each method, each seed."""
    first = experiment.federation_of(experiment.seeds[0])
    experiment.check_memory(first)
    federations = {experiment.seeds[0]: first}
    federations |= {seed: experiment.federation_of(seed) for seed in experiment.seeds[1:]}
    for federation in federations.values():
        federation.check_rounds(experiment.rounds)
    return [
        Replica.start(federations[seed], method, seed, experiment.rate, engine)
        for method in experiment.methods
        for seed in experiment.seeds
    ]


def comparison(replicas: Sequence[Replica], records: Sequence[Record]) -> Comparison:
    """The runs of the replicas, with their records and weights."""
    return Comparison(
        [
            Run(
                [r for r in records if (r["method"], r["seed"]) == (replica.method.name, replica.seed)],
                replica.method.name,
                replica.seed,
                replica.federation.task_names,
                replica.federation.clients,
                replica.federation,
                replica.state.weights,
            )
            for replica in replicas
        ]
    )


def fingerprint(replicas: Sequence[Replica]) -> str:
    """Tells one experiment from another: equal only for the same methods, seeds, rate, tasks and partitions."""
    digest = hashlib.sha256()
    for replica in replicas:
        federation = replica.federation
        lengths = [len(weights) for weights in replica.state.weights]
        digest.update(repr((replica.method.name, replica.seed, replica.rate, federation.task_names, lengths)).encode())
        digest.update(federation.sizes.tobytes() + federation.capacity.tobytes())
        for shards in federation.shards:
            digest.update(shards.index.tobytes())
    return digest.hexdigest()


def save(directory: RunDirectory, mark: str, replicas: Sequence[Replica], engine: Engine) -> None:
    """Writes a checkpoint of the round just finished."""
    snapshot = Snapshot([replica.state for replica in replicas], engine.choices.made)
    with directory.writing():
        checkpoint.write(directory.checkpoints, replicas[0].state.round, mark, snapshot, engine.world)


def restore(directory: RunDirectory, mark: str, replicas: Sequence[Replica], engine: Engine) -> list[Record]:
    """Puts replicas and engine back to the last checkpoint; returns the records up to it and forgets later ones."""
    like = Snapshot([replica.state for replica in replicas])
    found = checkpoint.read(directory.checkpoints, mark, like, engine.world)
    round, snapshot = found or (0, like)
    for replica, state in zip(replicas, snapshot.replicas, strict=True):
        replica.state = state
    engine.choices.made.update(snapshot.choices)
    records, mistake = list[Record](), ""
    if engine.world.first:
        try:
            records = directory.rewind(round, len(replicas))
        except UserError as error:
            mistake = str(error)
    mistake = engine.world.said_by_first(mistake)
    if mistake:
        raise UserError(mistake)
    return records


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """While active, the first Ctrl-C sets the event instead of breaking off; the second breaks off."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def seeds_of(seeds: int | Sequence[int]) -> Sequence[int]:
    """A number of seeds, from 0, or the seeds themselves."""
    if not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str):
        check(is_whole(seeds, 0), "", "seeds", seeds, "a whole number of at least 1, or a list of seeds")
        check_memory(f"{seeds:,} seeds", float(seeds) * _RECORD_BYTES)
        return range(int(seeds))
    return seeds if isinstance(seeds, range) else list(seeds)
