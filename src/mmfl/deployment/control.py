"""Control of a running deployment: what its owner asks for takes effect between two rounds, and is recorded."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmfl.deployment.engine import Deployment
from mmfl.deployment.remote_federation import UserModule
from mmfl.deployment.settings import DeploymentSettings
from mmfl.errors import UserError, nearest
from mmfl.federation.task import Task
from mmfl.runs.changes import ChangeLog, RunChange, read_requests
from mmfl.runs.layout import PAUSE
from mmfl.training import Replica
from mmfl.training.growth import make_room_for_tasks

_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Course:
    """What a deployment trains, and how far: tasks, the rounds in which they arrive, which of them are retired, and the
    settings."""

    tasks: tuple[Task, ...]
    arrivals: tuple[int, ...]
    retired: frozenset[str]
    settings: DeploymentSettings

    @classmethod
    def of(cls, tasks: Sequence[Task], settings: DeploymentSettings) -> "Course":
        """That of a new run."""
        return cls(tuple(tasks), (1,) * len(tasks), frozenset(), settings)

    def changed(self, change: RunChange, directory: Path, round: int) -> "Course":
        """After a change that is made after a round; refuses one that makes no sense here."""
        names, value = [task.name for task in self.tasks], change.value
        if change.kind in ("rate", "rounds"):
            if change.kind == "rounds" and value < round:
                raise UserError(f"control: rounds is {value}, but round {round} has ended; expected at least {round}.")
            return replace(self, settings=self.settings.model_copy(update={change.kind: value}))
        if change.kind == "add-task":
            if value in names:
                again = "was retired" if value in self.retired else "is in the run already"
                raise UserError(f"control: task '{value}' {again}; expected a new name.")
            task = load_task(directory / change.module, value)
            return replace(self, tasks=(*self.tasks, task), arrivals=(*self.arrivals, round + 1))
        active = [name for name in names if name not in self.retired]
        if value not in active:
            raise UserError(f"control: there is no task '{value}' to retire: {nearest(value, active)}")
        if len(active) == 1:
            raise UserError(f"control: '{value}' is the only task left; stop the run instead.")
        return replace(self, retired=self.retired | {value})


def load_task(path: Path, name: str) -> Task:
    """The task of this name in a module."""
    tasks = {task.name: task for task in UserModule.load(path).tasks}
    if name not in tasks:
        raise UserError(f"control: '{path.name}' has no task '{name}': {nearest(name, tasks)}")
    return tasks[name]


def course_at(directory: Path, tasks: Sequence[Task], settings: DeploymentSettings, round: int) -> Course:
    """What the run in a directory trained in a round, after all changes that were made before."""
    course = Course.of(tasks, settings)
    for change in ChangeLog(directory).before(round):
        course = course.changed(change, directory, change.after)
    return course


class Control:
    """Makes the changes that were recorded after a round, then those that are asked for now; called before each round.

    While the file `pause` is in the run directory it waits.
    """

    def __init__(self, directory: Path, engine: Deployment, course: Course, asked_to_stop: Callable[[], bool]):
        self.directory, self.engine, self.course, self.asked_to_stop = directory, engine, course, asked_to_stop
        self.log, self.events = ChangeLog(directory), engine.events
        self.repeated: set[str] = set()  # the recorded changes that were made again, by id

    def __call__(self, replicas: Sequence[Replica]) -> int:
        """Changes replicas and engine; returns the last round."""
        (replica,) = replicas
        self.events.round = round = replica.state.round
        for change in self.log.after(round):
            if change.id not in self.repeated:
                self.repeated.add(change.id)
                self._make(change, replica)
        self._wait_while_paused(replica)
        self._take_requests(replica)
        return self.course.settings.rounds

    def _wait_while_paused(self, replica: Replica) -> None:
        paused, live = False, self.engine.exchange.live
        while (self.directory / PAUSE).exists():
            if self.asked_to_stop():
                raise KeyboardInterrupt
            if not paused:
                paused = True
                self.events.add("control", detail=f"paused after round {replica.state.round}")
                live.begin_stage("paused")
            live.break_off_pace()
            self.engine.exchange.write_live_state()
            self._take_requests(replica)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        if paused:
            self.events.add("control", detail="goes on")

    def _take_requests(self, replica: Replica) -> None:
        """Makes and records what was asked for; what cannot be done becomes an event."""
        known = {change.id for change in self.log.made}
        for path, change in read_requests(self.directory):
            if isinstance(change, UserError):
                self.events.add("control", detail=f"refused: {change}")
            elif change.id not in known:
                change = replace(change, after=replica.state.round)
                try:
                    course = self.course.changed(change, self.directory, change.after)
                    for task in course.tasks[len(self.course.tasks) :]:
                        self.engine.check_task(task)
                except UserError as error:
                    self.events.add("control", detail=f"refused: {error}")
                else:
                    self.log.add(change)
                    self.repeated.add(change.id)
                    self._make(change, replica)
            path.unlink(missing_ok=True)

    def _make(self, change: RunChange, replica: Replica) -> None:
        self.course = self.course.changed(change, self.directory, change.after)
        settings, live = self.course.settings, self.engine.exchange.live
        replica.rate = settings.rate
        live.known |= {"rounds": settings.rounds, "rate": settings.rate}
        if change.kind == "add-task":
            self.engine.add_task(self.course.tasks[-1], self.course.arrivals[-1])
            make_room_for_tasks(replica, self.engine)
        elif change.kind == "retire-task":
            self.engine.retire_task(change.value)
        self.events.add("control", detail=str(change))


def keep_module(directory: Path, module: Path, folder: str) -> str:
    """Copies a module into the run directory, where the server finds it and keeps it; returns its path there."""
    target = directory / folder
    name = f"{time.time_ns()}.py"
    try:
        target.mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(module, target / name)
    except OSError as error:
        raise UserError(f"control: '{target}' cannot be written: {error.strerror}.") from None
    return f"{folder}/{name}"
