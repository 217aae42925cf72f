"""A federation whose clients are real, as the server knows it and as a node holds it; the module that describes it."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check_whole
from mmfl.data import Dataset, from_arrays
from mmfl.data.dataset import ELSEWHERE
from mmfl.data.lazy import join
from mmfl.data.structure import Structure, length, rows
from mmfl.errors import UserError, first_line
from mmfl.federation import Federation, RoundView
from mmfl.federation.availability import Always
from mmfl.federation.metric_kinds import CollectedMetric
from mmfl.federation.task import Task
from mmfl.partition import Shards

_SIZE_FACTOR = 2  # times the median number of examples that a client counts for

LocalData = Dataset | tuple[Any, Any] | None
"""A client's data for a task: a data set, or examples (x, y) without test examples; None if it lacks the task."""


@dataclass(frozen=True)
class UserModule:
    """A module that a user writes: the tasks, and a function that returns a client's data for a task.

    Where a task has `data`, the server tests on it; without it the nodes test on theirs.
    """

    tasks: Sequence[Task]
    data: Callable[[str, int], LocalData]

    @classmethod
    def load(cls, path: Path) -> "UserModule":
        """Loads a Python file."""
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"module '{path}' cannot be imported: {type(error).__name__}: {error}") from None
        for name in ("tasks", "data"):
            if not callable(getattr(module, name, None)):
                raise UserError(f"module '{path}' has no function '{name}'; expected tasks() and data(task, client).")
        tasks = module.tasks()
        if not isinstance(tasks, Sequence) or not tasks or not all(isinstance(task, Task) for task in tasks):
            raise UserError(f"module '{path}': tasks() gives {tasks!r}; expected a list of mmfl.Task.")
        names = [task.name for task in tasks]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise UserError(f"module '{path}': two tasks are named '{repeated}'; names must differ.")
        for task in tasks:
            _check_metrics_add_up(f"module '{path}'", task)
        return cls(tasks, module.data)


class ServerFederation(Federation):
    """What the server knows of the clients: how much data each has, its capacity, and whether it is `connected`.

    `clients` is how many may take part. Those that no node has announced yet are like clients that have not arrived.
    Before each round `wait_for_clients(round)` is called, which updates the rest. `unresponsive` marks clients that
    have failed to reply in the current round.
    """

    def __init__(self, tasks: Sequence[Task], clients: int, wait_for_clients: Callable[[int], None]):
        self.tasks, self.clients, self.seed = tuple(tasks), clients, 0
        self.wait_for_clients = wait_for_clients
        self.availability = Always()
        nothing = np.zeros((clients, len(tasks)), dtype=np.int64)
        self.announced, self.sizes, self.capacity = nothing.copy(), nothing, nothing[:, 0].copy()
        self.connected, self.unresponsive = np.zeros(clients, dtype=bool), np.zeros(clients, dtype=bool)
        self.shards, self.groups = (), (None,) * len(tasks)
        self.test_shards = (None,) * len(tasks)
        self.arrivals, self.departures = self._rounds("arrivals", None, 1), self._rounds("departures", None, 0)
        self.task_arrivals, self.retired = self._task_arrivals(None), np.zeros(len(tasks), dtype=bool)

    def add_task(self, task: Task, arrival: int) -> None:
        """Adds a task, which takes part from a round. No client has it until its node announces so again."""
        self.tasks = (*self.tasks, task)
        self.announced, self.sizes = (np.pad(each, ((0, 0), (0, 1))) for each in (self.announced, self.sizes))
        self.task_arrivals, self.retired = np.append(self.task_arrivals, arrival), np.append(self.retired, False)
        self.groups, self.test_shards = (*self.groups, None), (*self.test_shards, None)

    def retire_task(self, name: str) -> None:
        """From now on nobody trains a task, and it is not tested. Who has how much of the others must be announced
        again."""
        self.retired = self.retired | (np.array(self.task_names) == name)
        self.announced, self.sizes = (np.where(self.retired, 0, each) for each in (self.announced, self.sizes))

    def present_tasks(self, round: int) -> NDArray[np.bool_]:
        """Which tasks have arrived by a round and are not retired, [tasks]."""
        return super().present_tasks(round) & ~self.retired

    def fixed_bytes(self) -> bytes:
        """Nothing of the clients, who are not known before they connect; only how many clients and tasks there are."""
        return bytes(8 * self.clients * (len(self.tasks) + 1))

    def announce(self, client: int, sizes: Sequence[int], capacity: int) -> None:
        """Enters a client's number of examples for each task, and its capacity, for the next `limit_sizes`."""
        self.announced[client] = np.where(self.retired, 0, sizes)
        self.capacity = self.capacity.copy()  # views hold the old one
        self.capacity[client] = min(capacity, int((self.announced[client] > 0).sum()))

    def limit_sizes(self, max_examples: int | None) -> NDArray[np.int64]:
        """Sets the sizes to what clients announced, but at most to `max_examples`; by default to twice the median
        of what clients announced for the task (of two in the middle the lower one). Returns the sizes."""
        limits = np.full(len(self.tasks), max_examples or 0)
        for s in range(len(self.tasks) if max_examples is None else 0):
            known = self.announced[self.announced[:, s] > 0, s]
            limits[s] = _SIZE_FACTOR * np.quantile(known, 0.5, method="lower") if len(known) else 0
        self.sizes = np.minimum(self.announced, limits)
        return self.sizes

    def view(self, round: int, *, rate: float, seed: int, time: float = 0.0, out_of_reach: bool = False) -> RoundView:
        """The view of a round, with the clients that are connected when it begins."""
        self.wait_for_clients(round)
        self.unresponsive[:] = False
        return super().view(round, rate=rate, seed=seed).without(~self.connected)

    def _check_presence(self, last: int) -> None:
        """Does nothing: before the first round no client is known."""

    def without_lost_clients(self, view: RoundView) -> RoundView:
        """The view without clients that have left, or failed to reply, since the round began."""
        lost = view.present & (self.unresponsive | ~self.connected)
        return view.without(lost) if lost.any() else view


class NodeFederation(Federation):
    """The clients of one node, with their data. Clients have the same numbers as in the whole federation.

    `data_of(task, client)` returns a client's data for a task; each client trains `capacity` tasks in a round.
    `test_examples` counts, by task, the examples that the node can test on.
    """

    def __init__(
        self, tasks: Sequence[Task], clients: Sequence[int], data_of: Callable[[str, int], LocalData], capacity: int = 1
    ):
        self.members = sorted(set(clients))
        if not self.members or self.members[0] < 0:
            raise UserError(f"node: clients are {list(clients)}; expected their numbers, from 0.")
        self.clients, self.seed, self.availability = self.members[-1] + 1, 0, Always()
        loaded = [self._load(task, data_of) for task in tasks]
        self.tasks = tuple(task for task, _, _ in loaded)
        self.shards = tuple(shards for _, shards, _ in loaded)
        self.test_shards = tuple(tests for _, _, tests in loaded)
        self.test_examples = [0 if tests is None else len(tests.index) for tests in self.test_shards]
        self.sizes = np.stack([shards.sizes for shards in self.shards], axis=1)
        idle = next((client for client in self.members if not self.sizes[client].any()), None)
        if idle is not None:
            raise UserError(f"node: client {idle} has no data for any task.")
        check_whole("node", "capacity", capacity)
        self.capacity = np.minimum(capacity, (self.sizes > 0).sum(1))

    def _load(self, task: Task, data_of: Callable[[str, int], LocalData]) -> tuple[Task, Shards, Shards | None]:
        """A task with the data of all clients of the node, and the rows and the test rows of each client."""
        given = {client: data_of(task.name, client) for client in self.members}
        parts = {client: _read(task, client, data) for client, data in given.items() if data is not None}
        owner = np.repeat(np.array(list(parts), dtype=np.int64), [length(data.x) for data in parts.values()])
        shards = Shards.by_owner(owner, self.clients)
        if not parts:
            return task, shards, None
        with_tests = {client: data for client, data in given.items() if isinstance(data, Dataset)}
        tests = list(with_tests.values()) or list(parts.values())[:1]
        train = _join(task, [(data.x, data.y) for data in parts.values()])
        test = _join(task, [(data.x_test, data.y_test) for data in tests])
        local_task = replace(task, data=Dataset(task.name, *train, *test))
        local_task.check()
        counts = [length(data.x_test) for data in with_tests.values()]
        tester = np.repeat(np.array(list(with_tests), dtype=np.int64), counts)
        return local_task, shards, Shards.by_owner(tester, self.clients) if sum(counts) else None


def _check_metrics_add_up(where: str, task: Task) -> None:
    """Refuses metrics of which nodes would have to send the outputs of single examples, which stay with them."""
    collected = [name for name, metric in task.all_metrics.items() if isinstance(metric, CollectedMetric)]
    if task.data is ELSEWHERE and collected:
        raise UserError(
            f"{where}, task '{task.name}': metric '{collected[0]}' is not available where nodes test, since it needs "
            "the outputs of all examples; expected one that adds up, such as macro_f1, or test data on the server."
        )


def _join(task: Task, parts: Sequence[Structure]) -> Structure:
    """The examples of several clients, one after another."""
    try:
        return join(*parts)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"task '{task.name}': the clients' data differ: {first_line(error)}") from None


def _read(task: Task, client: int, data: LocalData) -> Dataset:
    """A client's data; the first of examples without test examples stands in for one."""
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, tuple) or len(data) != 2:
        raise UserError(
            f"task '{task.name}', client {client}: the data is a {type(data).__name__}; expected (x, y), a "
            "mmfl.data.Dataset, or None where the client lacks the task."
        )
    x, y = data
    return from_arrays(x, y, test=(rows(x, slice(1)), rows(y, slice(1))), name=task.name)
