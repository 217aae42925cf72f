"""Federation: tasks, clients and who holds what."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, check_memory, check_whole, is_number, is_whole
from mmfl.errors import UserError, nearest
from mmfl.federation.arrivals import Arrivals
from mmfl.federation.availability import Always, Availability, Trace
from mmfl.federation.task import Task
from mmfl.federation.view import RoundView
from mmfl.partition import Owners, Partition, Shards, Split, iid, owners
from mmfl.partition.matching import OwnedTask, OwnerPool
from mmfl.randomness import Purpose, generator

_PAIR_BYTES = 100  # that a client takes for each task, at least: sizes, shares, chances, counts

Capacity = int | Sequence[int] | Literal["all", "mixed"]


class Federation:
    """A pool of clients that share several tasks.

    - `partition` divides each task's data over the clients: one for all tasks or a mapping by task name. By default
      natural owners where the data has them, IID otherwise.
    - `clients`: how many there are. Where tasks are divided by owners, the clients are the owners of all these tasks
      together, found by name or number, in sorted order: `client_names`. Who owns nothing of a task lacks it. With
      fewer clients than owners, a random choice of the owners takes part, the same in every task.
    - `capacity` B_i: tasks a client can train in a round: a number, one per client, a short list repeated over the
      clients, "all" (every task it has) or "mixed" (a quarter all, half of them half, a quarter one).
    - `lacks`: who cannot train what: a share of clients that lack one random task, or a table [clients, tasks].
    - `arrivals`, `task_arrivals`: the round from which a client or a task takes part (1 by default); for clients also
      a process such as `mmfl.arrivals.exponential`. `departures`: the round from which a client is gone for good (0:
      never). Lists and tables with an entry per client have them in the order of `client_names`.
    - `seed` fixes partition, capacities and missing tasks; a run has a seed of its own.

    `groups` has, by task, the true cluster of each client where the partition made clusters.

    >>> from mmfl import data, models
    >>> task = Task("digits", models.LogisticRegression, data.digits())
    >>> Federation([task], clients=20).sizes.sum()
    np.int64(1438)
    """

    _owner_names: NDArray[Any] | None = None

    def __init__(
        self,
        tasks: Sequence[Task],
        clients: int | None = None,
        *,
        partition: Partition | Mapping[str, Partition] | None = None,
        capacity: Capacity = 1,
        lacks: float | ArrayLike = 0.0,
        arrivals: Sequence[int] | Arrivals | None = None,
        task_arrivals: Mapping[str, int] | None = None,
        departures: Sequence[int] | None = None,
        availability: Availability | None = None,
        seed: int = 0,
    ):
        self.tasks = tuple(tasks)
        check_whole("federation", "seed", seed, 0)
        self.seed = seed
        self.availability: Availability = Always() if availability is None else availability
        self._check_tasks()
        rules = self._partitions(partition)
        self.clients = self._count_clients(clients, rules)
        splits = self._divide(rules)
        lacking = self._lacking(lacks)
        self.shards: tuple[Shards, ...] = tuple(split.train.without(lacking[:, s]) for s, split in enumerate(splits))
        self.groups: tuple[NDArray[np.int64] | None, ...] = tuple(split.groups for split in splits)
        self.test_shards: tuple[Shards | None, ...] = tuple(split.test for split in splits)
        self.sizes: NDArray[np.int64] = np.stack([shards.sizes for shards in self.shards], axis=1)
        self._check_sizes()
        self.capacity: NDArray[np.int64] = self._capacity(capacity)
        arriving = arrivals(self.clients, generator(seed, Purpose.ARRIVALS)) if callable(arrivals) else arrivals
        self.arrivals = self._rounds("arrivals", arriving, 1)
        self.departures = self._rounds("departures", departures, 0)
        self.task_arrivals = self._task_arrivals(task_arrivals)

    def view(self, round: int, *, rate: float, seed: int) -> RoundView:
        """What the server knows at the start of a round; shares and budget are those of who is there."""
        staying = (self.departures == 0) | (round < self.departures)
        here = (self.arrivals <= round) & staying & self.availability.available(round, self.clients, seed)
        sizes = np.where(here[:, None] & (self.task_arrivals <= round), self.sizes, 0)
        share = sizes / np.maximum(sizes.sum(0), 1)
        capacity = np.minimum(self.capacity, (sizes > 0).sum(1))
        return RoundView(round, seed, sizes, share, capacity, rate * float(capacity.sum()))

    def without_lost_clients(self, view: RoundView) -> RoundView:
        """The view without those that have been lost since it was made; here nobody is."""
        return view

    def present_tasks(self, round: int) -> NDArray[np.bool_]:
        """Which tasks have arrived by a round, [tasks]."""
        return self.task_arrivals <= round

    @property
    def task_names(self) -> list[str]:
        """The tasks' names, in order."""
        return [task.name for task in self.tasks]

    @property
    def client_names(self) -> NDArray[Any]:
        """What each client is called, [clients]: the owner's name or number where tasks are divided by owners, else
        the client's number."""
        return np.arange(self.clients) if self._owner_names is None else self._owner_names

    def check_rounds(self, last: int) -> None:
        """Refuses schedules that give nonsense, and arrivals and departures after which nobody is left to train, in the
        rounds up to the last."""
        for task in self.tasks:
            task.check_schedules(last)
        self._check_presence(last)

    def describe(self) -> dict[str, str]:
        """A one-glance summary, as label -> text."""
        sizes = self.sizes[self.sizes > 0]
        return {
            "tasks": ", ".join(
                f"{task.name} ({n:,} examples)" for task, n in zip(self.tasks, self.sizes.sum(0), strict=True)
            ),
            "clients": f"{self.clients:,} with {sizes.min():,} to {sizes.max():,} examples a task",
            "processors": f"{int(self.capacity.sum()):,} (capacity {self.capacity.min()} to {self.capacity.max()})",
        }

    def __repr__(self) -> str:
        return f"Federation({self.clients} clients, tasks: {', '.join(self.task_names)})"

    def _repr_html_(self) -> str:
        from mmfl.report import notebook

        return notebook.federation(self)

    def _check_tasks(self) -> None:
        if not self.tasks:
            raise UserError("federation: no tasks; expected at least one.")
        names = self.task_names
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated:
            raise UserError(f"federation: two tasks are named '{repeated}'; names must differ.")
        for task in self.tasks:
            task.check()

    def _partitions(self, partition: Partition | Mapping[str, Partition] | None) -> list[Partition]:
        """The partition of each task."""
        if isinstance(partition, Mapping):
            unknown = next((name for name in partition if name not in self.task_names), None)
            if unknown is not None:
                raise UserError(
                    f"federation: partition for unknown task '{unknown}': {nearest(unknown, self.task_names)}"
                )
        given = [partition.get(task.name) if isinstance(partition, Mapping) else partition for task in self.tasks]
        natural = [iid() if task.data.owner is None else owners() for task in self.tasks]
        return [default if rule is None else rule for rule, default in zip(given, natural, strict=True)]

    def _count_clients(self, clients: int | None, rules: Sequence[Partition]) -> int:
        if clients is None:
            known = self._owned_tasks(rules) or self._owned_tasks(
                [owners() if task.data.owners else iid() for task in self.tasks]
            )
            if not known:
                raise UserError("federation: the data has no owners, so say how many clients there are (clients=...).")
            return max(len(OwnerPool.of(known)), 1)
        check_whole("federation", "clients", clients)
        check_memory(f"federation: {clients} clients", float(clients) * len(self.tasks) * _PAIR_BYTES)
        return clients

    def _owned_tasks(self, rules: Sequence[Partition]) -> list[OwnedTask]:
        """The tasks that these partitions divide by owners."""
        return [
            OwnedTask(task.name, task.data, rule)
            for task, rule in zip(self.tasks, rules, strict=True)
            if isinstance(rule, Owners)
        ]

    def _divide(self, rules: Sequence[Partition]) -> list[Split]:
        """Each task's data over the clients; an owner is the same client in all tasks that are divided by owners."""
        rngs = [generator(self.seed, Purpose.PARTITION, s) for s in range(len(self.tasks))]
        if owned := self._owned_tasks(rules):
            first = next(s for s, rule in enumerate(rules) if isinstance(rule, Owners))
            self._owner_names = OwnerPool.of(owned).choose(self.clients, rngs[first])
        return [
            rule.split(task.data, self.client_names, rng)
            if isinstance(rule, Owners)
            else rule(task.data, self.clients, rng)
            for task, rule, rng in zip(self.tasks, rules, rngs, strict=True)
        ]

    def _client(self, client: int) -> str:
        """A client by its number and, where it is an owner, by name."""
        name = "" if self._owner_names is None else f" ({self._owner_names[client].item()!r})"
        return f"client {client}{name}"

    def _lacking(self, lacks: float | ArrayLike) -> NDArray[np.bool_]:
        shape = (self.clients, len(self.tasks))
        if np.ndim(lacks) > 0:
            given = np.asarray(lacks)
            if given.shape != shape:
                raise UserError(f"federation: lacks has shape {given.shape}; expected [clients, tasks] = {shape}.")
            if given.dtype.kind not in "biuf" or not ((given == 0) | (given == 1)).all():
                raise UserError("federation: lacks is a table with other values than 0 and 1, or true and false.")
            return given.astype(bool)
        right = is_number(lacks, 0, 1)
        check(right, "federation", "lacks", lacks, "a share of the clients in [0, 1], or a table [clients, tasks]")
        share = float(lacks)  # type: ignore[arg-type]
        if share > 0 and len(self.tasks) < 2:
            raise UserError("federation: lacks needs at least two tasks: a client must keep one.")
        rng = generator(self.seed, Purpose.MISSING)
        table = np.zeros(shape, dtype=bool)
        some = rng.permutation(self.clients)[: round(share * self.clients)]
        table[some, rng.integers(0, len(self.tasks), len(some))] = True
        return table

    def _check_sizes(self) -> None:
        orphan = next((task.name for task, n in zip(self.tasks, self.sizes.sum(0), strict=True) if n == 0), None)
        if orphan is not None:
            raise UserError(f"federation: no client has data for task '{orphan}'.")
        idle = self.sizes.sum(1) == 0
        if idle.any():
            raise UserError(
                f"federation: {self._client(int(np.argmax(idle)))} has no data for any task "
                f"({int(idle.sum())} such clients)."
            )
        for task, test in zip(self.tasks, self.test_shards, strict=True):
            if test is not None and len(test.index) == 0:
                raise UserError(f"federation: no client has test examples of task '{task.name}'.")

    def _capacity(self, capacity: Capacity) -> NDArray[np.int64]:
        tasks_of: NDArray[np.int64] = np.count_nonzero(self.sizes, axis=1)
        if isinstance(capacity, str):
            if capacity == "all":
                return tasks_of
            if capacity == "mixed":
                place = generator(self.seed, Purpose.CAPACITY).permutation(self.clients) / self.clients
                return np.where(place < 0.25, tasks_of, np.where(place < 0.75, -(-tasks_of // 2), 1))
            raise UserError(f"federation: capacity '{capacity}': {nearest(capacity, ['all', 'mixed'])}")
        given = np.atleast_1d(np.asarray(capacity))
        right = given.ndim == 1 and _whole_numbers(capacity)
        check(right, "federation", "capacity", capacity, "whole numbers, 'all' or 'mixed'")
        if len(given) > self.clients:
            raise UserError(f"federation: {len(given)} capacities for {self.clients} clients.")
        per_client = np.resize(given, self.clients)
        wrong = (per_client < 1) | (per_client > tasks_of)
        if wrong.any():
            client = int(np.argmax(wrong))
            raise UserError(
                f"federation: {self._client(client)} has capacity {per_client[client]}; expected 1 to "
                f"{tasks_of[client]}, the number of its tasks."
            )
        return per_client

    def _rounds(self, name: str, rounds: Sequence[int] | NDArray[np.int64] | None, default: int) -> NDArray[np.int64]:
        if rounds is None:
            return np.full(self.clients, default, dtype=np.int64)
        right = np.ndim(rounds) == 1 and _whole_numbers(rounds)
        check(right, "federation", name, rounds, "a round for each client, in whole numbers")
        if len(rounds) != self.clients:
            raise UserError(f"federation: {len(rounds)} {name} for {self.clients} clients.")
        given = np.asarray(rounds, dtype=np.int64)
        if (given < 0).any():
            raise UserError(f"federation: {name} has {int(given.min())}; expected rounds, which begin at 1.")
        return given

    def _task_arrivals(self, arrivals: Mapping[str, int] | None) -> NDArray[np.int64]:
        rounds = np.ones(len(self.tasks), dtype=np.int64)
        for name, first in (arrivals or {}).items():
            if name not in self.task_names:
                raise UserError(f"federation: arrival of unknown task '{name}': {nearest(name, self.task_names)}")
            check_whole("federation", f"arrival of task '{name}'", first)
            rounds[self.task_names.index(name)] = first
        return rounds

    def _check_presence(self, last: int) -> None:
        """Refuses where nothing could ever train up to the last round."""
        rounds = f"{last} round{'s' if last > 1 else ''}"
        if (self.arrivals > last).all():
            first = int(self.arrivals.min())
            raise UserError(
                f"federation: all clients arrive after the last of {rounds} (the first in round {first}), so nothing "
                "would train; expected earlier arrivals or more rounds."
            )
        if (self.task_arrivals > last).all():
            first = int(self.task_arrivals.min())
            raise UserError(
                f"federation: all tasks arrive after the last of {rounds} (the first in round {first}), so nothing "
                "would train; expected earlier arrivals (task_arrivals) or more rounds."
            )
        if not self._ever_able(last).any():
            raise UserError(
                f"federation: no client with data for a task is there in any of {rounds}, so nothing would train; look "
                "at arrivals, departures and availability."
            )

    def _ever_able(self, last: int) -> NDArray[np.bool_]:
        """Which tasks some client could train in some round up to the last, [tasks]; chance is left to chance."""
        first = np.maximum(np.maximum(self.arrivals[:, None], self.task_arrivals), 1)
        end = np.where(self.departures == 0, last + 1, np.minimum(self.departures, last + 1))
        able: NDArray[np.bool_] = np.asarray(((self.sizes > 0) & (first < end[:, None])).any(0))
        if isinstance(self.availability, Trace):
            recorded = np.zeros_like(able)
            for round in range(1, last + 1):
                recorded |= self.view(round, rate=1.0, seed=0).able.any(0)
                if recorded.any():
                    break
            return recorded
        return able


def _whole_numbers(given: Any) -> bool:
    """Whether it is a whole number or a list of them; True and False are none."""
    if isinstance(given, np.ndarray):
        return given.dtype.kind in "iu"
    return all(is_whole(value, -(2**63)) for value in given) if np.ndim(given) == 1 else is_whole(given, -(2**63))
