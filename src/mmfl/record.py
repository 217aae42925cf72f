"""What a round leaves behind: a record of plain numbers, and its JSON. Nothing here needs torch."""

from collections.abc import Iterator, Mapping, Sequence
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


class Span(NamedTuple):
    """A training on the clock: who trained which task (by its number) from when to when, in seconds, and why it was
    wasted, if it was."""

    client: int
    task: int
    begin: float
    end: float
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """A round on the clock, in seconds: when it began and ended, how long devices that were sent something were `busy`
    and how long they were there for it (`offered`).

    `dropped` counts trainings that were begun in vain, and `wasted` has the seconds they took, both by cause; `joules`
    is the energy that devices used, where that is known. `uncovered` has, by task, the share of the data of all clients
    that nobody could have delivered in this round, if any. `spans` are trainings, at most `MAX_SPANS` of a round.
    """

    begin: float
    end: float
    busy: float = 0.0
    offered: float = 0.0
    wasted: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    joules: float | None = None
    uncovered: Mapping[str, float] = field(default_factory=dict)
    spans: Sequence[Span] = ()
    extras: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long the round took."""
        return self.end - self.begin

    @property
    def utilisation(self) -> float | None:
        """Which share of the seconds that devices were there for it they worked."""
        return self.busy / self.offered if self.offered else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; what is empty is left out."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        kept = {name: value for name, value in values.items() if value not in (None, {}, ())}
        return {**kept, **({"spans": [list(span) for span in self.spans]} if self.spans else {})}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Timing":
        """The same again."""
        spans = tuple(Span(*each) for each in values.get("spans", ()))
        return cls(**{**_known(cls, values), "spans": spans})


MAX_SPANS = 100
"""Trainings of a round whose times are recorded, for a picture; of more, evenly spaced ones are."""


@dataclass(frozen=True, slots=True)
class ClientSpread:
    """How a task's main metric differs from client to client, each measured on its own test examples.

    `worst_tenth` is the mean over the tenth of the clients (rounded up) for which the metric is worst. `fairness` is
    Jain's index (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything; None where values are negative
    or all 0. The metric is undefined for `undefined` clients, such as AUC with examples of one class; all other numbers
    are of the remaining `clients`.
    """

    clients: int = 0
    undefined: int = 0
    mean: float | None = None
    worst_tenth: float | None = None
    deviation: float | None = None
    least: float | None = None
    lower_quartile: float | None = None
    median: float | None = None
    upper_quartile: float | None = None
    most: float | None = None
    fairness: float | None = None


class Drawn(NamedTuple):
    """The clients that were drawn for a task, and how many processors of each.

    In JSON many clients in a row are [first, last], and many equal counts [count, number of clients], so that a record
    stays small where everyone trains.

    >>> Drawn([3, *range(10, 40)], [2] * 31).to_json()
    [[3, [10, 39]], [[2, 31]]]
    """

    clients: list[int]
    counts: list[int]

    def to_json(self) -> list[Any]:
        """Clients and counts as JSON values."""
        clients: list[Any] = []
        for run in _runs(self.clients, step=1):
            clients += run if len(run) < _LONG_RUN else [[run[0], run[-1]]]
        counts: list[Any] = []
        for run in _runs(self.counts, step=0):
            counts += run if len(run) < _LONG_RUN else [[run[0], len(run)]]
        return [clients, counts]

    @classmethod
    def from_json(cls, values: Sequence[Sequence[Any]]) -> "Drawn":
        """The same again."""
        clients, counts = values
        return cls(
            [n for each in clients for n in (range(each[0], each[1] + 1) if isinstance(each, list) else (each,))],
            [n for each in counts for n in ([each[0]] * each[1] if isinstance(each, list) else (each,))],
        )


def _runs(numbers: Sequence[int], step: int) -> Iterator[list[int]]:
    """The numbers divided where one is not the one before plus the step."""
    begin = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + step:
            yield list(numbers[begin:end])
            begin = end


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What a round did to one task. A number that was not measured is None.

    `active` clients trained it, and `rejected` updates were left out because they were not finite. `extras` are the
    quantiles of the clients' probabilities and what the aggregation reports about itself, such as statistics of beta.

    Where the round was tested, `metrics` has all metrics by name, the main one first; None is undefined, such as AUC
    with a single class. `clients` says how the main one differs between clients whose test examples are their own.
    `average_metric` and `average_loss` are those of averaged weights, where weights are averaged.
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
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    clients: ClientSpread | None = None
    extras: Mapping[str, float] = field(default_factory=dict)
    average_metric: float | None = None
    average_loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values; `metrics`, `clients` and averages are left out where there are none."""
        return {
            **self._own_numbers(),
            **({"metrics": dict(self.metrics)} if self.metrics else {}),
            **({"clients": asdict(self.clients)} if self.clients else {}),
            **self.extras,
        }

    def numbers(self) -> dict[str, float | None]:
        """All numbers by their names: further metrics under theirs, those of `clients` as `client_mean` and so on."""
        spread = {CLIENT_PREFIX + name: getattr(self.clients, name) for name in SPREAD} if self.clients else {}
        return {**self.extras, **self.metrics, **spread, **self._own_numbers()}

    def _own_numbers(self) -> dict[str, float | None]:
        """The fields that are numbers; of averaged weights, those that are known."""
        found = {name: getattr(self, name) for name in _TASK_NUMBERS}
        return {name: value for name, value in found.items() if value is not None or name not in _TASK_AVERAGES}

    def value(self, quantity: str) -> float | None:
        """A number by its name; None where it was not recorded."""
        if quantity in _TASK_NUMBERS:
            recorded: float | None = getattr(self, quantity)
            return recorded
        if quantity.startswith(CLIENT_PREFIX) and self.clients:
            return getattr(self.clients, quantity.removeprefix(CLIENT_PREFIX), None)
        return self.metrics[quantity] if quantity in self.metrics else self.extras.get(quantity)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TaskRecord":
        """The record again. What an older version did not record is None, or 0 where it is a count."""
        extras = dict(values)
        known = {name: extras.pop(name) for name in _TASK_NUMBERS if name in extras}
        metrics, spread = extras.pop("metrics", {}), extras.pop("clients", None)
        return cls(
            **known, metrics=metrics, clients=spread and ClientSpread(**_known(ClientSpread, spread)), extras=extras
        )


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What happened in one round of one method with one seed.

    `mean` and `worst` are over the tasks, None where the round was not tested; `average_mean` and `average_worst` are
    those of averaged weights. `tasks` has the tasks that have arrived, `drawn` those that somebody trained, both by
    name. `extras` are what the allocation reports about its decision, such as clusters; `faults` count what went wrong
    with the nodes of a deployment, by kind. `time` is the round on the clock, where clients have devices.

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
    average_mean: float | None = None
    average_worst: float | None = None
    time: Timing | None = None

    def drawn_clients(self, task: str) -> list[int]:
        """The clients that were drawn for a task."""
        return self.drawn[task].clients if task in self.drawn else []

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values; `faults`, averages and `time` are left out where there are none."""
        averages = {"average_mean": self.average_mean, "average_worst": self.average_worst}
        return {
            "round": self.round,
            "method": self.method,
            "seed": self.seed,
            "mean": self.mean,
            "worst": self.worst,
            **{name: value for name, value in averages.items() if value is not None},
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "clients": self.clients,
            "clients_seen": self.clients_seen,
            "cost": asdict(self.cost),
            "drawn": {name: drawn.to_json() for name, drawn in self.drawn.items()},
            **self.extras,
            "seconds": self.seconds,
            **({"faults": dict(self.faults)} if self.faults else {}),
            **({"time": self.time.to_json()} if self.time is not None else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RoundRecord":
        """The record again, also of a version that recorded less."""
        extras = dict(values)
        known = {name: extras.pop(name) for name in _ROUND_FIELDS if name in extras}
        known["tasks"] = {name: TaskRecord.from_json(task) for name, task in known.get("tasks", {}).items()}
        known["cost"] = Cost(**_known(Cost, known.get("cost", {})))
        known["time"] = Timing.from_json(known["time"]) if known.get("time") else None
        known["drawn"] = {name: Drawn.from_json(drawn) for name, drawn in known.get("drawn", {}).items()}
        return cls(**known, extras=extras)


@dataclass(frozen=True, slots=True)
class LastTest:
    """What the last test of a task found besides single numbers: each client's main metric, on the client's own
    `examples`, and tables such as a confusion matrix, by the names of the metrics. `names` are those of the clients,
    where they are natural owners."""

    round: int
    clients: Sequence[int] = ()
    examples: Sequence[int] = ()
    values: Sequence[float | None] = ()
    tables: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    names: Sequence[str | int] = ()


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields that a class has."""
    return {each.name: values[each.name] for each in fields(kind) if each.name in values}


_LONG_RUN = 16  # clients in a row, or equal counts, from which on their ends take less room than a list
SPREAD = [each.name for each in fields(ClientSpread)]
"""What is known of the distribution of a metric over clients, by name."""
CLIENT_PREFIX = "client_"
"""Begins the names of these numbers among those of a task."""
_TASK_AVERAGES = ("average_metric", "average_loss")
_TASK_NUMBERS = tuple(each.name for each in fields(TaskRecord) if each.name not in ("metrics", "clients", "extras"))
_ROUND_FIELDS = tuple(each.name for each in fields(RoundRecord) if each.name != "extras")
