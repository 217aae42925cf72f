"""Federation: the tasks, the clients, and which data each client has."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, check_memory, check_whole
from mmfl.errors import UserError, nearest
from mmfl.federation.arrivals import Arrivals
from mmfl.federation.attacks import Attack
from mmfl.federation.availability import Always, Availability, Trace
from mmfl.federation.capacities import Capacity, are_whole_numbers, client_capacities, missing_tasks
from mmfl.federation.device_profiles import Devices
from mmfl.federation.devices import Population
from mmfl.federation.durations import Durations
from mmfl.federation.false_labels import with_flipped_labels
from mmfl.federation.presence import KnownView, Presence
from mmfl.federation.task import Task
from mmfl.federation.view import RoundView
from mmfl.federation.work import Work
from mmfl.partition import Owners, Partition, Shards, Split, iid, owners
from mmfl.partition.plain import OwnedTask, OwnerPool
from mmfl.randomness import Purpose, generator

_PAIR_BYTES = 100  # lower bound on the memory of a (client, task) pair: sizes, shares, probabilities, counts


class Federation:
    """A pool of clients that share several tasks.

    - `partition` divides each task's data among the clients: one partition for all tasks, or a mapping from task name
      to partition. By default, data with natural owners is divided by owner, other data IID.
    - `clients` is their number. If tasks are divided by owner, the clients are the owners of all these tasks together,
      matched by name or number and sorted (`client_names`). An owner without data for a task lacks that task. With
      fewer clients than owners, a random subset of the owners takes part, the same one in every task.
    - `capacity` B_i is how many tasks a client can train in a round: a number, one number per client, a short list that
      is repeated over the clients, "all" (every task it has) or "mixed" (a quarter of the clients can train all their
      tasks, half of them half, a quarter one).
    - `lacks` says which clients lack which tasks: the share of clients that lack one random task, or a table
      [clients, tasks].
    - `arrivals` and `task_arrivals` give the round from which a client or a task takes part (default 1); for clients
      also a process such as `mmfl.arrivals.exponential`. `departures` gives the round from which a client is gone for
      good (0: never). Lists with an entry per client are in the order of `client_names`.
    - `attack` makes some of the clients send false updates or train on false labels, such as
      `mmfl.attacks.SignFlip(clients=0.2)`; `attackers` says which, [clients].
    - `devices` says what clients train on, such as `mmfl.devices.phones()`: then rounds take time, clients can be
      out of reach, and models that do not fit into a client's memory are not trained there.
    - `seed` determines partition, capacities, missing tasks, attackers and devices; a run has its own seed.

    If the partition made clusters, `groups` holds the true cluster of each client, by task.

    >>> from mmfl import data, models
    >>> task = Task("digits", models.LogisticRegression, data.digits())
    >>> Federation([task], clients=20).sizes.sum()
    np.int64(1438)
    """

    _owner_names: NDArray[Any] | None = None
    _known: KnownView | None = None
    _durations: Durations | None = None
    _fitting: NDArray[np.int64] | None = None
    attack: Attack | None = None
    devices: Devices | None = None

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
        attack: Attack | None = None,
        devices: Devices | Population | None = None,
        seed: int = 0,
    ):
        check(not isinstance(tasks, Task), "federation", "tasks", tasks, "a list of tasks")
        self.tasks = tuple(tasks)
        check_whole("federation", "seed", seed, 0)
        self.seed = seed
        self.availability: Availability = Always() if availability is None else availability
        self._check_tasks()
        rules = self._partitions(partition)
        self.clients = self._count_clients(clients, rules)
        splits = self._divide(rules)
        lacking = missing_tasks(lacks, self.clients, len(self.tasks), seed)
        self.shards: tuple[Shards, ...] = tuple(split.train.without(lacking[:, s]) for s, split in enumerate(splits))
        self.groups: tuple[NDArray[np.int64] | None, ...] = tuple(split.groups for split in splits)
        self.test_shards: tuple[Shards | None, ...] = tuple(split.test for split in splits)
        self.sizes: NDArray[np.int64] = np.stack([shards.sizes for shards in self.shards], axis=1)
        self._check_sizes()
        self.capacity: NDArray[np.int64] = client_capacities(capacity, self.sizes, seed, self.describe_client)
        arrival_rounds = arrivals(self.clients, generator(seed, Purpose.ARRIVALS)) if callable(arrivals) else arrivals
        self.arrivals = self._rounds("arrivals", arrival_rounds, 1)
        self.departures = self._rounds("departures", departures, 0)
        self.task_arrivals = self._task_arrivals(task_arrivals)
        self._set_attack(attack)
        self._set_devices(devices)

    def view(self, round: int, *, rate: float, seed: int, time: float = 0.0, out_of_reach: bool = False) -> RoundView:
        """What the server knows at the start of a round; shares and budget refer to the clients that are present. Where
        clients have devices, those are present that can be reached at the `time` on the clock, or are `out_of_reach`
        for a while, if these count too."""
        arrays = self.trainable_sizes, self.capacity, self.arrivals, self.departures, self.task_arrivals
        presence = Presence(self.tasks, *arrays, self.availability)
        if self._known is None or not self._known.holds(presence, round):
            self._known = KnownView.of(presence, round, seed)
        known = self._known.view
        view = known.at(round, seed, rate * float(known.processors))
        return view if self.devices is None else self._timed(view, self.devices, time, out_of_reach)

    def without_lost_clients(self, view: RoundView) -> RoundView:
        """The view without clients that were lost since it was created; in a simulation, none are."""
        return view

    def present_clients(self, round: int) -> NDArray[np.bool_]:
        """Which clients take part in a round by their arrivals and departures, reachable or not, [clients]."""
        return np.asarray((self.arrivals <= round) & ((self.departures == 0) | (round < self.departures)))

    def present_tasks(self, round: int) -> NDArray[np.bool_]:
        """Which tasks have arrived by a round, [tasks]."""
        return self.task_arrivals <= round

    @property
    def trainable_sizes(self) -> NDArray[np.int64]:
        """Examples of each client for each task, 0 where the model does not fit into the client's memory."""
        return self.sizes if self._fitting is None else self._fitting

    @cached_property
    def work(self) -> Work:
        """What a local training of each client and task asks for."""
        return Work.of(self.tasks, self.sizes)

    def durations(self) -> Durations:
        """How long trainings take; refuses a federation without devices."""
        if self.devices is None:
            raise UserError("federation: it has no devices, so trainings have no duration; expected devices=....")
        if self._durations is None:
            self._durations = self.devices.durations(self.work)
        return self._durations

    def _timed(self, view: RoundView, devices: Devices, time: float, out_of_reach: bool) -> RoundView:
        """The view of those that can be reached at a time, with the durations of their trainings."""
        lost = devices.sessions.until(time) <= time
        if not out_of_reach and (lost & view.present).any():
            view = view.without(lost)
        seconds = self.durations().mean()
        return view.timed(time, seconds, np.ones_like(seconds))

    def fixed_bytes(self) -> bytes:
        """Sizes and capacities as bytes: what tells this federation, with its tasks and partition, from another."""
        return self.sizes.tobytes() + self.capacity.tobytes()

    @property
    def task_names(self) -> list[str]:
        """The tasks' names, in order."""
        return [task.name for task in self.tasks]

    @property
    def client_names(self) -> NDArray[Any]:
        """The names of the clients, [clients]: the owners' names or numbers if tasks are divided by owner, else the
        clients' numbers."""
        return np.arange(self.clients) if self._owner_names is None else self._owner_names

    def check_rounds(self, last: int) -> None:
        """Refuses schedules with invalid values in the rounds up to the last, and arrivals and departures that leave no
        client to train in any of them."""
        for task in self.tasks:
            task.check_schedules(last)
        self._check_presence(last)

    def describe(self) -> dict[str, str]:
        """A short summary, from label to text."""
        sizes = self.sizes[self.sizes > 0]
        summary = {
            "tasks": ", ".join(
                f"{task.name} ({n:,} examples)" for task, n in zip(self.tasks, self.sizes.sum(0), strict=True)
            ),
            "clients": f"{self.clients:,} with {sizes.min():,} to {sizes.max():,} examples a task",
            "processors": f"{int(self.capacity.sum()):,} (capacity {self.capacity.min()} to {self.capacity.max()})",
        }
        if self.attack is not None:
            summary["attackers"] = f"{int(self.attackers.sum()):,} of {self.clients:,} ({type(self.attack).__name__})"
        return summary

    def __repr__(self) -> str:
        return f"Federation({self.clients} clients, tasks: {', '.join(self.task_names)})"

    def _repr_html_(self) -> str:
        from mmfl.report import notebook

        return notebook.federation(self)

    def _check_tasks(self) -> None:
        if not self.tasks:
            raise UserError("federation: no tasks; expected at least one.")
        repeated = next((name for name in self.task_names if self.task_names.count(name) > 1), None)
        if repeated:
            raise UserError(f"federation: two tasks are named '{repeated}'; names must differ.")
        for task in self.tasks:
            task.check()

    def _partitions(self, partition: Partition | Mapping[str, Partition] | None) -> list[Partition]:
        """The partition of each task."""
        given = partition if isinstance(partition, Mapping) else dict.fromkeys(self.task_names, partition)
        unknown = next((name for name in given if name not in self.task_names), None)
        if unknown is not None:
            raise UserError(f"federation: partition for unknown task '{unknown}': {nearest(unknown, self.task_names)}")
        return [given.get(task.name) or (iid() if task.data.owner is None else owners()) for task in self.tasks]

    def _count_clients(self, clients: int | None, rules: Sequence[Partition]) -> int:
        if clients is None:
            by_owner = [OwnedTask(task.name, task.data, owners()) for task in self.tasks if task.data.owners]
            known = self._owned_tasks(rules) or by_owner
            if not known:
                raise UserError("federation: the data has no owners; expected the number of clients (clients=...).")
            return max(len(OwnerPool(known).names), 1)
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
        """Divides each task's data among the clients; an owner is the same client in all tasks divided by owner."""
        rngs = [generator(self.seed, Purpose.PARTITION, s) for s in range(len(self.tasks))]
        if owned := self._owned_tasks(rules):
            first = next(s for s, rule in enumerate(rules) if isinstance(rule, Owners))
            self._owner_names = OwnerPool(owned).choose(self.clients, rngs[first])
        return [
            rule.split(task.data, self.client_names, rng)
            if isinstance(rule, Owners)
            else rule(task.data, self.clients, rng)
            for task, rule, rng in zip(self.tasks, rules, rngs, strict=True)
        ]

    def _set_attack(self, attack: Attack | None) -> None:
        """Who attacks; where labels are flipped, tasks get data with the attackers' labels."""
        self.attackers: NDArray[np.bool_] = np.zeros(self.clients, dtype=bool)
        if attack is None:
            return
        expected = "an attack, such as mmfl.attacks.SignFlip(clients=0.2)"
        check(isinstance(attack, Attack), "federation", "attack", attack, expected)
        self.attack, self.attackers = attack, attack.attackers(self.clients, self.seed)
        if attack.flips_labels:
            pairs = zip(self.tasks, self.shards, strict=True)
            self.tasks = tuple(with_flipped_labels(task, attack, shards, self.attackers) for task, shards in pairs)

    def _set_devices(self, devices: Devices | Population | None) -> None:
        """The devices of the clients; somebody must have room for each model."""
        if devices is None:
            return
        given = devices(self.clients, generator(self.seed, Purpose.DEVICES)) if callable(devices) else devices
        expected = "devices, such as mmfl.devices.phones()"
        check(isinstance(given, Devices), "federation", "devices", devices, expected)
        if len(given) != self.clients:
            raise UserError(f"federation: {len(given)} devices for {self.clients} clients.")
        self.devices = given
        if not (fits := given.fits(self.work)).all():
            self._fitting = np.where(fits, self.sizes, 0)
        for task, fitting, memory in zip(self.tasks, self.trainable_sizes.sum(0), self.work.memory, strict=True):
            if not fitting:
                raise UserError(
                    f"federation: the model of task '{task.name}' fits into no client's memory: training takes "
                    f"{memory / 1e6:,.1f} MB, and the largest device has {given.memory.max() / 1e6:,.1f} MB."
                )

    def describe_client(self, client: int) -> str:
        """The client's number and, if it is an owner, its name."""
        name = "" if self._owner_names is None else f" ({self._owner_names[client].item()!r})"
        return f"client {client}{name}"

    def _check_sizes(self) -> None:
        for task, shards, test in zip(self.tasks, self.shards, self.test_shards, strict=True):
            if len(shards.index) == 0:
                raise UserError(f"federation: no client has data for task '{task.name}'.")
            if test is not None and len(test.index) == 0:
                raise UserError(f"federation: no client has test examples of task '{task.name}'.")
        idle = self.sizes.sum(1) == 0
        if idle.any():
            raise UserError(
                f"federation: {self.describe_client(int(np.argmax(idle)))} has no data for any task "
                f"({int(idle.sum())} such clients)."
            )

    def _rounds(self, name: str, rounds: Sequence[int] | NDArray[np.int64] | None, default: int) -> NDArray[np.int64]:
        if rounds is None:
            return np.broadcast_to(np.int64(default), self.clients)
        valid = np.ndim(rounds) == 1 and are_whole_numbers(rounds)
        check(valid, "federation", name, rounds, "a round for each client, in whole numbers")
        if len(rounds) != self.clients:
            raise UserError(f"federation: {len(rounds)} {name} for {self.clients} clients.")
        checked = np.asarray(rounds, dtype=np.int64)
        if (checked < 0).any():
            raise UserError(f"federation: {name} has {int(checked.min())}; expected rounds, which begin at 1.")
        return checked

    def _task_arrivals(self, arrivals: Mapping[str, int] | None) -> NDArray[np.int64]:
        rounds = np.ones(len(self.tasks), dtype=np.int64)
        for name, first in (arrivals or {}).items():
            if name not in self.task_names:
                raise UserError(f"federation: arrival of unknown task '{name}': {nearest(name, self.task_names)}")
            check_whole("federation", f"arrival of task '{name}'", first)
            rounds[self.task_names.index(name)] = first
        return rounds

    def _check_presence(self, last: int) -> None:
        """Refuses a federation in which nothing can train in any round up to the last."""
        rounds = f"{last} round{'s' if last > 1 else ''}"
        for who, first in (("clients", self.arrivals.min()), ("tasks", self.task_arrivals.min())):
            if first > last:
                option = " (task_arrivals)" if who == "tasks" else ""
                raise UserError(
                    f"federation: all {who} arrive after the last of {rounds} (the first in round {first}), so nothing "
                    f"would train; expected earlier arrivals{option} or more rounds."
                )
        if not self._ever_able(last):
            raise UserError(
                f"federation: no client with data for a task is present in any of {rounds}, so nothing would train; "
                "check arrivals, departures and availability."
            )

    def _ever_able(self, last: int) -> bool:
        """Whether some client can train some task in some round up to the last; random availability is ignored."""
        if isinstance(self.availability, Trace):
            return any(self.view(round, rate=1.0, seed=0).able.any() for round in range(1, last + 1))
        first = np.maximum(np.maximum(self.arrivals[:, None], self.task_arrivals), 1)
        end = np.where(self.departures == 0, last + 1, np.minimum(self.departures, last + 1))
        return bool(((self.sizes > 0) & (first < end[:, None])).any())
