"""What a round leaves behind: a record of plain numbers, and its JSON. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Cost:
    """What a round asked of clients and network."""

    trainings: int = 0
    processors: int = 0
    forward_passes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    stored_bytes: int = 0


class Drawn(NamedTuple):
    """The clients that were drawn for a task, and how many processors of each."""

    clients: list[int]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What a round did to one task. A number that was not measured is None.

    `active` clients trained it, and `rejected` updates were left out because they were not finite. `extras` are the
    quantiles of the clients' probabilities and what the aggregation reports about itself, such as statistics of beta.
    """

    metric: float | None = None
    loss: float | None = None
    training_loss: float | None = None
    active: int = 0
    rejected: int = 0
    step_size: float | None = None
    step_size_variance: float | None = None
    loss_variance: float | None = None
    update_variance: float | None = None
    extras: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, float | None]:
        """All numbers by their names."""
        return {**{name: getattr(self, name) for name in _TASK_FIELDS}, **self.extras}

    def value(self, quantity: str) -> float | None:
        """A number by its name; None where it was not recorded."""
        recorded: float | None = getattr(self, quantity) if quantity in _TASK_FIELDS else self.extras.get(quantity)
        return recorded

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TaskRecord":
        """The record again. What an older version did not record is None, or 0 where it is a count."""
        extras = dict(values)
        known = {name: extras.pop(name) for name in _TASK_FIELDS if name in extras}
        return cls(**known, extras=extras)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What happened in one round of one method with one seed.

    `mean` and `worst` are over the tasks, None where the round was not tested. `tasks` has the tasks that have arrived,
    `drawn` those that somebody trained, both by name. `extras` are what the allocation reports about its decision, such
    as clusters; `faults` count what went wrong with the nodes of a deployment, by kind.

    >>> record = RoundRecord(1, "random", 0, clients=4, drawn={"digits": Drawn([0, 3], [1, 1])})
    >>> RoundRecord.from_json(record.to_json()) == record
    True
    """

    round: int
    method: str
    seed: int
    mean: float | None = None
    worst: float | None = None
    tasks: Mapping[str, TaskRecord] = field(default_factory=dict)
    clients: int = 0
    clients_seen: int = 0
    cost: Cost = field(default_factory=Cost)
    drawn: Mapping[str, Drawn] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    faults: Mapping[str, int] = field(default_factory=dict)

    def drawn_clients(self, task: str) -> list[int]:
        """The clients that were drawn for a task."""
        return self.drawn[task].clients if task in self.drawn else []

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values; `faults` are left out where there are none."""
        return {
            "round": self.round,
            "method": self.method,
            "seed": self.seed,
            "mean": self.mean,
            "worst": self.worst,
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "clients": self.clients,
            "clients_seen": self.clients_seen,
            "cost": asdict(self.cost),
            "drawn": {name: list(drawn) for name, drawn in self.drawn.items()},
            **self.extras,
            "seconds": self.seconds,
            **({"faults": dict(self.faults)} if self.faults else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RoundRecord":
        """The record again, also of a version that recorded less."""
        extras = dict(values)
        known = {name: extras.pop(name) for name in _ROUND_FIELDS if name in extras}
        cost = known.get("cost", {})
        known["tasks"] = {name: TaskRecord.from_json(task) for name, task in known.get("tasks", {}).items()}
        known["cost"] = Cost(**{each.name: cost[each.name] for each in fields(Cost) if each.name in cost})
        known["drawn"] = {name: Drawn(*drawn) for name, drawn in known.get("drawn", {}).items()}
        return cls(**known, extras=extras)


def _names(record: type[TaskRecord] | type[RoundRecord]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(record) if each.name != "extras")


_TASK_FIELDS, _ROUND_FIELDS = _names(TaskRecord), _names(RoundRecord)
