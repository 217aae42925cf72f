"""The two sides of a federation whose clients are real: what the server is told of it, and what a node holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mmfl.checks import check_whole
from mmfl.data import Dataset, from_arrays
from mmfl.errors import UserError
from mmfl.federation import Federation, RoundView
from mmfl.federation.availability import Always
from mmfl.federation.task import Task
from mmfl.partition import Shards

LocalData = Dataset | tuple[Any, Any] | None
"""A client's data of a task: a data set, or its examples (x, y) without any to test on; None if it lacks the task."""


class Announced(Federation):
    """All that a server is told: how much data each client has, its capacity, who is there, and who has been `silent`
    this round.

    `clients` is how many may take part; who has not announced itself yet is like one that has not arrived. Before each
    round `roll_call` is asked to bring the rest up to date.
    """

    def __init__(self, tasks: Sequence[Task], clients: int, roll_call: Callable[[int], None]):
        self.tasks, self.clients, self.seed = tuple(tasks), clients, 0
        self.roll_call = roll_call
        self.availability = Always()
        nothing = np.zeros((clients, len(tasks)), dtype=np.int64)
        self.sizes, self.capacity = nothing, nothing[:, 0].copy()
        self.here, self.silent = np.zeros(clients, dtype=bool), np.zeros(clients, dtype=bool)
        self.shards, self.groups = (), (None,) * len(tasks)
        self.test_shards = (None,) * len(tasks)
        self.arrivals, self.departures = self._rounds("arrivals", None, 1), self._rounds("departures", None, 0)
        self.task_arrivals = self._task_arrivals(None)

    def announce(self, client: int, sizes: Sequence[int], capacity: int) -> None:
        """What a client says of itself."""
        self.sizes[client] = sizes
        self.capacity[client] = min(capacity, int((self.sizes[client] > 0).sum()))

    def view(self, round: int, *, rate: float, seed: int) -> RoundView:
        """What is known once the roll was called."""
        self.roll_call(round)
        self.silent[:] = False
        return super().view(round, rate=rate, seed=seed).without(~self.here)

    def _check_presence(self, last: int) -> None:
        """Nobody is known before the first roll call."""

    def without_lost_clients(self, view: RoundView) -> RoundView:
        """Without those that are gone, or have not answered, since."""
        lost = view.present & (self.silent | ~self.here)
        return view.without(lost) if lost.any() else view


class Held(Federation):
    """The clients of one node, with their data; their numbers are those of the whole federation.

    `data_of(task, client)` gives what a client has of a task, `capacity` how many tasks it trains in a round. `tested`
    counts, by task, the examples that the node can test on.
    """

    def __init__(
        self, tasks: Sequence[Task], clients: Sequence[int], data_of: Callable[[str, int], LocalData], capacity: int = 1
    ):
        self.members = sorted(set(clients))
        if not self.members or self.members[0] < 0:
            raise UserError(f"node: clients are {list(clients)}; expected their numbers, from 0.")
        self.clients, self.seed, self.availability = self.members[-1] + 1, 0, Always()
        held = [self._gather(task, data_of) for task in tasks]
        self.tasks = tuple(task for task, _, _ in held)
        self.shards = tuple(shards for _, shards, _ in held)
        self.tested = [rows for _, _, rows in held]
        self.test_shards = (None,) * len(held)
        self.sizes = np.stack([shards.sizes for shards in self.shards], axis=1)
        idle = next((client for client in self.members if not self.sizes[client].any()), None)
        if idle is not None:
            raise UserError(f"node: client {idle} has no data for any task.")
        check_whole("node", "capacity", capacity)
        self.capacity = np.minimum(capacity, (self.sizes > 0).sum(1))

    def _gather(self, task: Task, data_of: Callable[[str, int], LocalData]) -> tuple[Task, Shards, int]:
        """A task with the data of all clients here, who has which rows of it, and how many there are to test on."""
        known = {client: _read(task, client, data_of(task.name, client)) for client in self.members}
        have = {client: data for client, data in known.items() if data is not None}
        owner = np.repeat(np.array(list(have), dtype=np.int64), [len(data.x) for data, _ in have.values()])
        shards = Shards.by_owner(owner, self.clients)
        if not have:
            return task, shards, 0
        parts = [data for data, _ in have.values()]
        tests = [data for data, tested in have.values() if tested] or parts[:1]
        x, y = (torch.cat([getattr(data, name) for data in parts]) for name in ("x", "y"))
        x_test, y_test = (torch.cat([getattr(data, name) for data in tests]) for name in ("x_test", "y_test"))
        here = replace(task, data=Dataset(task.name, x, y, x_test, y_test))
        here.check()
        return here, shards, sum(len(data.x_test) for data, tested in have.values() if tested)


def _read(task: Task, client: int, data: LocalData) -> tuple[Dataset, bool] | None:
    """A client's data, and whether it has examples to test on."""
    if data is None or isinstance(data, Dataset):
        return None if data is None else (data, True)
    if not isinstance(data, tuple) or len(data) != 2:
        raise UserError(
            f"task '{task.name}', client {client}: the data is a {type(data).__name__}; expected (x, y), a "
            "mmfl.data.Dataset, or None where the client lacks the task."
        )
    x, y = data
    return from_arrays(x, y, test=(x[:1], y[:1]), name=task.name), False
