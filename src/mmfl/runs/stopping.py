"""Stop: when a run ends before its last round, judged by what was recorded and by the clock."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mmfl.checks import check, check_positive, check_whole, is_number
from mmfl.errors import UserError, nearest
from mmfl.record import RoundRecord


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When to stop before the last round: as soon as one of these holds, for every method and seed of the run.

    - `target`: every task's metric has reached this value in some tested round; or, by name, each named task its own.
    - `patience`: no task has improved by more than `min_delta` for this many rounds, and all tasks have arrived.
    - `seconds`: this many seconds have passed since the run began, or was resumed; that round is tested.

    >>> Stop(target={"digits": 0.9}, seconds=3600).patience is None
    True
    """

    target: float | Mapping[str, float] | None = None
    patience: int | None = None
    min_delta: float = 0.0
    seconds: float | None = None

    def __post_init__(self) -> None:
        targets = self.target.values() if isinstance(self.target, Mapping) else [self.target]
        numbers = [is_number(each, -math.inf, math.inf) for each in targets]
        valid = self.target is None or (all(numbers) and len(numbers) > 0)
        check(valid, "stop", "target", self.target, "a number, or a number for each task by its name")
        if self.patience is not None:
            check_whole("stop", "patience", self.patience)
        check(is_number(self.min_delta, 0, math.inf), "stop", "min_delta", self.min_delta, "a number of at least 0")
        needed = "a patience as well, to which it belongs"
        check(self.patience is not None or self.min_delta == 0, "stop", "min_delta", self.min_delta, needed)
        if self.seconds is not None:
            check_positive("stop", "seconds", self.seconds)

    @property
    def has_rule(self) -> bool:
        """Whether it can stop a run at all."""
        return any(rule is not None for rule in (self.target, self.patience, self.seconds))

    def targets(self, tasks: Sequence[str]) -> dict[str, float]:
        """The targets by task; refuses a name that no task has."""
        if not isinstance(self.target, Mapping):
            return {} if self.target is None else dict.fromkeys(tasks, self.target)
        unknown = next((str(name) for name in self.target if name not in tasks), None)
        if unknown is not None:
            raise UserError(f"stop: target names the task '{unknown}': {nearest(unknown, tasks)}")
        return dict(self.target)


@dataclass
class BestSoFar:
    """The best metric of a task; and the metric when it last improved by more than `min_delta`, with that round."""

    metric: float = math.nan
    reference: float = math.nan
    improved: int = 0


@dataclass
class Progress:
    """How far the runs of an experiment have come, and whether that is a reason to stop.

    `lower_is_better` says of each task whether its metric is an error. `round` is the last that was tested, and
    `time_is_up` is what `read_clock` last found.
    """

    stop: Stop
    lower_is_better: Mapping[str, bool]
    clock: Callable[[], float] = time.monotonic
    best: dict[tuple[str, int, str], BestSoFar] = field(default_factory=dict)
    round: int = 0
    time_is_up: bool = False

    def __post_init__(self) -> None:
        self.set_tasks(self.lower_is_better)
        self.began = self.clock()

    def set_tasks(self, lower_is_better: Mapping[str, bool]) -> None:
        """Sets the tasks, where one was added."""
        self.lower_is_better, self.targets = lower_is_better, self.stop.targets(list(lower_is_better))

    def add(self, records: Sequence[RoundRecord]) -> None:
        """Adds the records of one round or several; those of a resumed run come first."""
        for record in records:
            if any(task.metric is not None for task in record.tasks.values()):
                self.round = max(self.round, record.round)
                for name, task in record.tasks.items():
                    known = self.best.setdefault((record.method, record.seed, name), BestSoFar(improved=record.round))
                    if task.metric is not None:
                        self._compare(known, name, task.metric, record.round)

    def _compare(self, known: BestSoFar, task: str, metric: float, round: int) -> None:
        sign = -1 if self.lower_is_better[task] else 1
        if math.isnan(known.metric) or sign * (metric - known.metric) > 0:
            known.metric = metric
        if math.isnan(known.reference) or sign * (metric - known.reference) > self.stop.min_delta:
            known.reference, known.improved = metric, round

    def read_clock(self) -> bool:
        """Whether the time is up; from then on it is a reason to stop. This is asked before a round is tested, so that
        the last round can be."""
        self.time_is_up = self.stop.seconds is not None and self.clock() - self.began >= self.stop.seconds
        return self.time_is_up

    def reason(self) -> str:
        """Why to stop now; empty if there is no reason."""
        if self.targets and self._on_target():
            return "all tasks have reached their targets"
        arrived = {name for _, _, name in self.best}
        if self.stop.patience is not None and arrived == set(self.lower_is_better):
            idle = self.round - max(known.improved for known in self.best.values())
            if idle >= self.stop.patience:
                return f"no task has improved for {idle} rounds"
        if self.time_is_up:
            return f"{self.stop.seconds:g} seconds have passed"
        return ""

    def _on_target(self) -> bool:
        judged = [(name, known.metric) for (_, _, name), known in self.best.items() if name in self.targets]
        reached = [
            metric <= self.targets[name] if self.lower_is_better[name] else metric >= self.targets[name]
            for name, metric in judged
        ]
        return {name for name, _ in judged} == set(self.targets) and all(reached)
