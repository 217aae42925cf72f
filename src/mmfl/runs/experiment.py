"""Experiment: methods x seeds on a federation, conducted in lockstep, with or without a run directory."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from mmfl.checks import check, check_memory, check_whole, is_positive, is_whole
from mmfl.engine import Engine
from mmfl.engine.layout import Layout
from mmfl.errors import UserError, check_name
from mmfl.federation import Federation
from mmfl.methods import Method
from mmfl.privacy import CentralNoise
from mmfl.record import RoundRecord
from mmfl.runs.directory import RunDirectory, made_with
from mmfl.runs.listener import Listener, RunInfo, StopRequest, interruptible
from mmfl.runs.results import Comparison, Run
from mmfl.runs.snapshots import CheckpointPace, Mark, end_together, restore, save
from mmfl.runs.status import RunEnd, StatusWriter
from mmfl.runs.stopping import Progress, Stop
from mmfl.training import Replica, all_rounds
from mmfl.training.average import check_average
from mmfl.updates.world import World

_RECORD_BYTES = 1000  # of a round's record for each task, at least


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment:
    """What to run: every method with every seed, each pair a replica of its own.

    `federation_of` gives the federation of a seed: the same for all, or partitioned anew for each; it is asked once for
    each seed. Models are tested every `evaluate_every` rounds, and after each of the `evaluate_last` last ones. `stop`
    says when the run ends before its last round; with `keep_best` the best tested weights of each task are kept, and
    `average` says how its weights are averaged over rounds. `central_noise` is added to the sum of a round's updates.
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
    stop: Stop = field(default_factory=Stop)
    keep_best: bool = False
    average: float | None = None
    central_noise: CentralNoise | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "federation_of", cache(self.federation_of))
        right = is_positive(self.rate) and self.rate <= 1
        check(right, "", "rate", self.rate, "a share of the processors in (0, 1]")
        for name in ("rounds", "evaluate_every", "evaluate_last", "checkpoint_every"):
            check_whole("", name, getattr(self, name))
        check_average(self.average)
        check(isinstance(self.stop, Stop), "", "stop", self.stop, "a rule such as mmfl.Stop(target=0.9)")
        for name in ("diagnose", "keep_best"):
            check(isinstance(getattr(self, name), bool), "", name, getattr(self, name), "True or False")
        for name in ("methods", "seeds"):
            if not len(getattr(self, name)):
                raise UserError(f"no {name} given; expected at least one.")
        for seed in self.seeds[:1] if isinstance(self.seeds, range) else self.seeds:
            check(is_whole(seed, 0), "", "seed", seed, "a whole number, 0 or above")
        for method in self.methods:
            method.with_noise(self.central_noise)  # refuses those that need more than sums
        names = [method.name for method in self.methods]
        for name in names:
            check_name("method", name)
        for kind, values in (("methods", names), ("seeds", self.seeds)):
            if not isinstance(values, range) and len(set(values)) < len(values):
                raise UserError(f"{kind} {list(values)} repeat one; each may be given once.")

    @property
    def replicas(self) -> int:
        """How many runs there are: methods x seeds."""
        return len(self.methods) * len(self.seeds)

    def needed_memory(self) -> float:
        """Bytes that all replicas take at least, judging by the federation of the first seed."""
        federation = self.federation_of(self.seeds[0])
        parameters = sum(Layout(task.build()).length for task in federation.tasks)
        pairs = federation.clients * len(federation.tasks)
        records = self.rounds * len(federation.tasks) * _RECORD_BYTES
        vectors = 1 if self.average is None else 2 if self.average < 1 else 1 + self.average
        return self.replicas * (4.0 * parameters * vectors + 8.0 * pairs + records)


Adjust = Callable[[Sequence[Replica]], int]
"""Is called before every round; may change rates and tasks of the replicas, and returns the last round."""


def conduct(
    experiment: Experiment | Sequence[Experiment],
    engine: Engine,
    *,
    open_directory: Callable[[], RunDirectory] | None = None,
    resume: bool = False,
    listener: Listener | None = None,
    asked_to_stop: Callable[[], bool] = lambda: False,
    adjust: Adjust | None = None,
) -> Comparison:
    """Runs all replicas to the last round, writing metrics and checkpoints to a directory on the way.

    The directory is opened once everything else is known to be in order, so that a mistake leaves none behind. No other
    process can work on it meanwhile.

    With `resume` it goes on from the last good checkpoint, to the same result as if it had never stopped; so it does
    without, where the directory was begun by this `torchrun` job, which has lost a process since. Ctrl-C stops
    after the round that is under way, with a checkpoint, and so does `asked_to_stop`; a second one stops at once. Both
    raise `KeyboardInterrupt`. Where a listener asks to stop, the result is that of the rounds so far.

    `adjust` may change the replicas between two rounds.

    Several experiments advance in lockstep as one run: their federations and rates may differ, and the names of their
    methods must; all else is that of the first.

    Where several processes share the run, the first one opens the directory, writes the metrics and is listened to.
    """
    world = engine.world
    listener = listener if listener and world.first else Listener()
    several = [experiment] if isinstance(experiment, Experiment) else experiment
    replicas = start(several, engine)
    experiment = replace(several[0], methods=[method for each in several for method in each.methods])
    records: list[RoundRecord] = []
    mark = Mark(replicas)
    if open_directory:
        mark()  # before the first round, which may take long
    last = experiment.rounds
    pace = CheckpointPace(experiment.checkpoint_every)
    stop = StopRequest()
    progress = Progress(
        experiment.stop, lower_is_better(replicas[0])
    )  # of use in the first process, which has all records
    with (
        open_together(open_directory, world) as directory,
        StatusWriter(directory.path if directory and world.first else None, last) as status,
    ):
        resume = resume or world.any(directory is not None and directory.begun)
        if directory and resume:
            records = restore(directory, mark(), replicas, engine)
            progress.add(records)
        first = replicas[0].state.round + 1
        versions = made_with(getattr(engine, "device", None))
        status.begin(first - 1, describe(experiment, world), ", ".join(map(" ".join, versions.items())))
        info = run_info(experiment, replicas, first, directory if world.first else None, stop)
        with announce(listener, info, status, None if resume else directory), interruptible() as interrupted:
            if records and (reason := progress.reason()):
                stop(reason, finished=True)
            if world.any(stop.asked):  # as for a run that had ended before it was resumed
                status.end, last = stop.end, first - 1
            run_to = partial(
                all_rounds,
                replicas,
                engine,
                evaluate_every=experiment.evaluate_every,
                evaluate_last=experiment.evaluate_last,
                diagnose=experiment.diagnose,
                time_is_up=lambda: world.any(progress.read_clock()),
            )
            happened = adjusted_rounds(run_to, last, replicas, None if stop.asked else adjust)
            for t, (end, fresh) in enumerate(happened, first):
                records += fresh
                if directory:
                    if world.first:
                        directory.append(fresh)
                    status.round(t, end)
                if adjust:
                    progress.set_tasks(lower_is_better(replicas[0]))
                progress.add(fresh)
                if world.first and (reason := progress.reason()):
                    stop(reason, finished=True)
                listener.round(fresh)
                asked = np.array([interrupted.is_set() or asked_to_stop(), stop.asked], dtype=np.float64)
                broken_off, stopped = world.sums(asked) > 0
                if directory and (world.any(pace.due(t)) or t == end or broken_off or stopped):
                    pace.write(partial(save, directory, mark(), replicas, engine))
                    status.note(f"checkpoint after round {t}")
                if t < end and broken_off:
                    raise KeyboardInterrupt
                if t < end and stopped:
                    status.end = stop.end
                    break
    return comparison(replicas, records)


def lower_is_better(replica: Replica) -> dict[str, bool]:
    """Of each task whether its main metric is an error."""
    return {task.name: task.main_metric.lower_is_better for task in replica.federation.tasks}


def adjusted_rounds(
    run_to: Callable[[int], Iterator[list[RoundRecord]]], last: int, replicas: Sequence[Replica], adjust: Adjust | None
) -> Iterator[tuple[int, list[RoundRecord]]]:
    """The records of each round up to the last, with the number of the last, as `adjust` sets it before every round."""
    if adjust is None:
        yield from ((last, fresh) for fresh in run_to(last))
        return
    while replicas[0].state.round < (last := adjust(replicas)):
        yield last, next(run_to(last))


def describe(experiment: Experiment, world: World) -> str:
    """What is run, on a line."""
    methods, seeds = ", ".join(method.name for method in experiment.methods), len(experiment.seeds)
    several = f", {world.size} processes" if world.size > 1 else ""
    return f"{methods}; {experiment.rounds} rounds x {seeds} seed{'s' if seeds > 1 else ''}{several}"


def run_info(
    experiment: Experiment, replicas: Sequence[Replica], first: int, directory: RunDirectory | None, stop: StopRequest
) -> RunInfo:
    """What listeners are told about a run."""
    federation = replicas[0].federation
    named = {(replica.method.name, replica.seed): replica for replica in replicas}
    return RunInfo(
        methods=[method.name for method in experiment.methods],
        seeds=list(experiment.seeds),
        tasks=federation.task_names,
        clients=federation.clients,
        rate=experiment.rate,
        rounds=experiment.rounds,
        first=first,
        directory=directory.path if directory else None,
        config=with_task_settings(directory.config() if directory else {}, federation),
        attackers={
            replica.seed: np.flatnonzero(replica.federation.attackers).tolist()
            for replica in replicas
            if replica.federation.attack is not None
        },
        stop=stop,
        states=lambda method, seed: named[method, seed].state,
    )


def with_task_settings(config: Mapping[str, Any], federation: Federation) -> dict[str, Any]:
    """A configuration with what the federation knows besides: the number of clients, and how each task is trained."""
    given = {task["name"]: task for task in config.get("tasks", ()) if isinstance(task, Mapping) and "name" in task}
    tasks = []
    for task in federation.tasks:
        known = {"lr": task.lr, "epochs": task.epochs, "batch_size": task.batch_size}
        tasks.append({**known, **given.get(task.name, {"name": task.name})})
    return {**config, "federation": {"clients": federation.clients, **config.get("federation", {})}, "tasks": tasks}


@contextmanager
def announce(
    listener: Listener, info: RunInfo, status: StatusWriter, fresh: RunDirectory | None = None
) -> Iterator[None]:
    """Tells a listener that the run begins and, later, how it ended. Where the listener refuses, nothing is left of a
    `fresh` directory."""
    try:
        listener.begin(info)
    except UserError:
        if fresh:
            shutil.rmtree(fresh.path, ignore_errors=True)
        raise
    try:
        yield
    except BaseException as error:
        listener.end(RunEnd.from_error(error))
        raise
    listener.end(status.end)


@contextmanager
def open_together(open_directory: Callable[[], RunDirectory] | None, world: World) -> Iterator[RunDirectory | None]:
    """The run's directory, opened and locked by the first process and told to the others; a mistake ends them all."""
    if open_directory is None:
        yield None
        return
    with ExitStack() as lock:
        directory = None
        with end_together(world):
            if world.first:
                directory = open_directory()
                lock.enter_context(directory.hold())
        path = world.broadcast(str(directory.path) if directory else "")
        yield directory or RunDirectory(Path(path))


def start(experiments: Sequence[Experiment], engine: Engine) -> list[Replica]:
    """All replicas before their first round: for each experiment and method, each seed."""
    replicas = sum(each.replicas for each in experiments)
    check_memory(f"{replicas:,} runs (methods x seeds)", sum(each.needed_memory() for each in experiments))
    for each in experiments:
        for seed in each.seeds:
            each.federation_of(seed).check_rounds(each.rounds)
    return [
        Replica.start(
            each.federation_of(seed),
            method.with_noise(each.central_noise),
            seed,
            each.rate,
            engine,
            each.keep_best,
            each.average,
        )
        for each in experiments
        for method in each.methods
        for seed in each.seeds
    ]


def comparison(replicas: Sequence[Replica], records: Sequence[RoundRecord]) -> Comparison:
    """The runs of the replicas, with their records and weights."""
    runs = []
    for replica in replicas:
        name, seed, federation = replica.method.name, replica.seed, replica.federation
        known = [record for record in records if (record.method, record.seed) == (name, seed)]
        weights, tested = replica.state.weights, replica.tested
        batch_norm = [None if norm is None else norm.mean() for norm in replica.state.batch_norm]
        tasks, clients = federation.task_names, federation.clients
        run = Run(known, name, seed, tasks, clients, federation, weights, batch_norm, tested=tested)
        run.privacy_spent = replica.method.aggregation.spent(replica.state.aggregation)
        run.best_weights, run.average_weights = replica.state.best, replica.state.average
        runs.append(run)
    return Comparison(runs)


def seeds_of(seeds: int | Sequence[int]) -> Sequence[int]:
    """A number of seeds, from 0, or the seeds themselves."""
    if not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str):
        check(is_whole(seeds, 0), "", "seeds", seeds, "a whole number of at least 1, or a list of seeds")
        check_memory(f"{seeds:,} seeds", float(seeds) * _RECORD_BYTES)
        return range(int(seeds))
    return seeds if isinstance(seeds, range) else list(seeds)
