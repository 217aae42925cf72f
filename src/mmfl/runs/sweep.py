"""Sweeps: every method at every point of a grid, in lockstep as far as possible, in a directory that can be resumed."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmfl.errors import LostProcessError, UserError
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import conduct
from mmfl.runs.grid import describe
from mmfl.runs.listener import Listener, ListenerGroup
from mmfl.runs.lock import hold
from mmfl.runs.results import Run
from mmfl.runs.snapshots import end_together
from mmfl.runs.status import RunEnd
from mmfl.runs.sweep_directory import SweepDirectory, SweepPart, assign_parts, names_alone
from mmfl.runs.sweep_plan import SweepPlan, Trial
from mmfl.runs.sweep_results import Sweep

_log = logging.getLogger("mmfl")


class SweepListener(Listener):
    """A listener that is also told which part of a sweep comes next."""

    def part(self, part: SweepPart, number: int, parts: int) -> None:
        """Called before a part trains: which it is, and of how many."""


def train_sweep(
    plan: SweepPlan,
    directory: Path | None = None,
    listener: SweepListener | None = None,
    listeners_of: Callable[[Mapping[str, Any]], Sequence[Listener]] = lambda common: (),
) -> Sweep:
    """Trains all that is not trained yet, part after part; the runs of a part advance in lockstep.

    A part that fails is trained again, each of its trials alone, so that one does not cost the others their results.
    A trial that fails alone is left out, with a warning, and the others go on. `listener` is told of all parts;
    `listeners_of` gives the others that are told of a part, by its common settings.
    """
    world = plan.engine_of(plan.trials[0].common).world
    place = SweepDirectory(directory) if directory else None
    listener = listener if listener and world.first else SweepListener()
    with ExitStack() as lock:
        queue: list[SweepPart] = []
        with end_together(world):
            if world.first:
                check_sweep(plan, directory)
                if place:
                    lock.enter_context(hold(place.path))
                    place.write(plan.file())
                queue = _parts(plan, place)
        queue = [
            SweepPart(**part) for part in json.loads(world.broadcast(json.dumps([asdict(each) for each in queue])))
        ]
        return _train_parts(plan, queue, place, listener, listeners_of)


def _parts(plan: SweepPlan, place: SweepDirectory | None) -> list[SweepPart]:
    return assign_parts([(each.label, each.shared, len(plan.seeds)) for each in plan.trials], place)


def check_sweep(plan: SweepPlan, directory: Path | None) -> None:
    """Refuses what cannot be trained, or not in this directory, before anything is written."""
    place = SweepDirectory(directory) if directory else None
    if place:
        place.check(plan.file())
    new = {label for part in _parts(plan, place) if part.new for label in part.labels}
    first = plan.federation()
    for trial in plan.trials:
        if trial.label not in new:
            continue
        where, found = f"sweep, {describe(trial.point)}", trial.experiment().federation_of(plan.seeds[0])
        if found.task_names != first.task_names:
            names = first.task_names
            raise UserError(f"{where}: the tasks are {found.task_names}; expected {names} at every point.")
        for one, other in zip(first.tasks, found.tasks, strict=True):
            if one.main_metric.lower_is_better != other.main_metric.lower_is_better:
                raise UserError(f"{where}: task '{one.name}' has an error at one point and a score at another.")


def _train_parts(
    plan: SweepPlan,
    queue: list[SweepPart],
    place: SweepDirectory | None,
    listener: SweepListener,
    listeners_of: Callable[[Mapping[str, Any]], Sequence[Listener]],
) -> Sweep:
    trials = {trial.label: trial for trial in plan.trials}
    runs: dict[str, list[Run]] = {label: [] for label in trials}
    failures: dict[str, str] = {}
    number = 0
    while queue:
        part, number = queue.pop(0), number + 1
        try:
            if part.finished and place:
                found = place.runs_of(part)
            else:
                listener.part(part, number, number + len(queue))
                members = [trials[label] for label in part.labels]
                listeners = ListenerGroup([*listeners_of(members[0].common), listener])
                found = _train_part(plan, part, members, place, listeners)
        except LostProcessError:
            raise
        except Exception as error:
            reason = RunEnd.from_error(error).reason
            if len(part.labels) == 1:
                failures[part.labels[0]] = reason
                unexpected = None if isinstance(error, UserError) else error
                _log.warning("%s failed: %s", part.labels[0], reason, exc_info=unexpected)
                continue
            _log.warning("a run failed; those in lockstep with it train one after another: %s", reason)
            queue[:0] = [SweepPart(name, [label]) for name, label in zip(names_alone(part), part.labels, strict=True)]
        else:
            for run in found:
                runs[run.method].append(run)
    return Sweep(plan.grid, plan.methods, runs, failures, plan.file().lower_is_better)


def _train_part(
    plan: SweepPlan, part: SweepPart, members: Sequence[Trial], place: SweepDirectory | None, listener: Listener
) -> list[Run]:
    """Trains the trials of a part in lockstep, from its checkpoint where it has one."""
    experiments, engine = [trial.experiment() for trial in members], plan.engine_of(members[0].common)

    def open_directory() -> RunDirectory:
        path = place.path / part.name if place else Path()
        if not part.new:
            return RunDirectory.open(path)
        tasks = [{"name": name} for name in plan.federation().task_names]
        config = {"source": "sweep", "methods": list(part.labels), "seeds": list(plan.seeds), "tasks": tasks}
        return RunDirectory.create(path, config | {"rounds": experiments[0].rounds}, engine.device)

    opened = open_directory if place else None
    return conduct(experiments, engine, open_directory=opened, resume=not part.new, listener=listener).runs
