"""RoundView: what the server knows about the federation when it decides who trains in a round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mmfl.federation.kinds import Kinds
from mmfl.randomness import Purpose, clients_below, clients_uniform, uniform

Value = TypeVar("Value")


def _computed_once(compute: Callable[["RoundView"], Value]) -> Callable[["RoundView"], Value]:
    """A property of a view's clients, computed once for all views of the same clients."""

    @wraps(compute)
    def get(view: "RoundView") -> Value:
        if compute.__name__ not in view._computed:
            view._computed[compute.__name__] = value = compute(view)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        return view._computed[compute.__name__]  # type: ignore[no-any-return]

    return get


@dataclass(frozen=True, eq=False)
class RoundView:
    """What an allocation may know when it decides who trains in a round. Arrays are [clients, tasks] or [clients].

    - `sizes`: examples of each client for each task; 0 where the client is absent, has not arrived or lacks the task.
    - `share` d: the client's share of all examples of the task that are present in this round.
    - `capacity` B: how many tasks a client can train in this round.
    - `budget` m: the expected number of trainings that the server can pay for.
    - `signals`: the measurements that the allocation asked for, by name (such as `losses`).
    - `priority`: how much each task counts when it is decided who trains what, [tasks]; only ratios matter. All are 1
      if none are given.
    - `model_bytes`: how many bytes the trained parameters of each task take when they are sent, [tasks].
    - `time`: seconds on the clock at the round's start, `seconds`: how long a training keeps a device busy on average,
      and `completion` q: the probability that it is completed once it was begun, [clients, tasks], 1 without deadline.
      None in federations without devices.

    Rounds with the same clients share their arrays, so these cannot be written to; copy an array to change it.
    """

    round: int
    seed: int
    sizes: NDArray[np.int64]
    share: NDArray[np.float64]
    capacity: NDArray[np.int64]
    budget: float
    signals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    priority: NDArray[np.float64] = field(default_factory=lambda: np.ones(0))
    model_bytes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    time: float | None = None
    seconds: NDArray[np.float64] | None = None
    completion: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not len(self.priority):
            object.__setattr__(self, "priority", np.ones(self.sizes.shape[1]))
        self._sharing({})

    @property
    @_computed_once
    def able(self) -> NDArray[np.bool_]:
        """Which clients can train which tasks this round, [clients, tasks]."""
        return self.sizes > 0

    @property
    @_computed_once
    def present(self) -> NDArray[np.bool_]:
        """Clients that can train something this round, [clients]."""
        return np.asarray(self.able.any(1))

    @property
    @_computed_once
    def trainable(self) -> NDArray[np.bool_]:
        """Tasks that some client can train this round, [tasks]."""
        return np.asarray(self.able.any(0))

    @property
    def tasks_of(self) -> NDArray[np.int64]:
        """|S_i|: how many tasks each client can train, [clients]."""
        return np.asarray(self.able.sum(1))

    @property
    @_computed_once
    def processors(self) -> int:
        """V: the number of processors of all present clients."""
        return int(self.capacity.sum())

    @property
    @_computed_once
    def number_present(self) -> int:
        """How many clients can train something this round."""
        return int(self.present.sum())

    @property
    @_computed_once
    def clients_of(self) -> NDArray[np.int64]:
        """How many clients can train each task, [tasks]."""
        return np.asarray(self.able.sum(0))

    @property
    @_computed_once
    def examples(self) -> NDArray[np.int64]:
        """How many examples of each task are present, [tasks]."""
        return np.asarray(self.sizes.sum(0))

    @property
    @_computed_once
    def kinds(self) -> Kinds:
        """The clients by what they can train, for rules that treat all clients of a kind alike."""
        return Kinds.among(self.able, self.capacity)

    @property
    @_computed_once
    def _columns(self) -> tuple[NDArray[np.int64], ...]:
        return tuple(self.sizes.T)

    def sizes_of(self, task: int) -> NDArray[np.int64]:
        """The examples of each client for one task, [clients]: the same array in rounds with the same clients."""
        return self._columns[task]

    @property
    def losses(self) -> NDArray[np.float64]:
        """f: mean local loss of the global weights, [clients, tasks]; only for an allocation that needs `losses`."""
        return self.signals["losses"]

    def with_signals(self, **signals: NDArray[np.float64]) -> "RoundView":
        """The same view with measured signals added."""
        return self._of_same_clients(signals={**self.signals, **signals})

    def with_priority(self, priority: NDArray[np.float64]) -> "RoundView":
        """The same view with other priorities, [tasks]."""
        return self._of_same_clients(priority=priority)

    def timed(self, time: float, seconds: NDArray[np.float64], completion: NDArray[np.float64]) -> "RoundView":
        """The same view at a time on the clock, with what is known of durations."""
        return self._of_same_clients(time=time, seconds=seconds, completion=completion)

    def at(self, round: int, seed: int, budget: float) -> "RoundView":
        """Another round with the same clients, and without signals."""
        return self._of_same_clients(round=round, seed=seed, budget=budget, signals={})

    def only(self, tasks: NDArray[np.bool_]) -> "RoundView":
        """The same round and budget with the marked tasks [tasks] alone; capacities are at most the remaining tasks."""
        marks, known = tasks.tobytes(), self._computed.get("only")
        if known is None or known[0] != marks:
            sizes, share = np.where(tasks, self.sizes, 0), np.where(tasks, self.share, 0.0)
            arrays = {"sizes": sizes, "share": share, "capacity": np.minimum(self.capacity, (sizes > 0).sum(1))}
            for each in arrays.values():
                each.setflags(write=False)
            self._computed["only"] = known = marks, arrays, {"kinds": self.kinds.only(tasks)}
        _, arrays, computed = known
        return replace(self, **arrays)._sharing(computed)

    def without(self, clients: NDArray[np.bool_]) -> "RoundView":
        """The same round without the marked clients [clients]: shares and budget are those of the remaining clients."""
        sizes = np.where(clients[:, None], 0, self.sizes)
        capacity = np.where(clients, 0, self.capacity)
        budget = self.budget * float(capacity.sum()) / max(self.processors, 1)
        return replace(self, sizes=sizes, share=sizes / np.maximum(sizes.sum(0), 1), capacity=capacity, budget=budget)

    def without_pairs(self, pairs: NDArray[np.bool_]) -> "RoundView":
        """The same round without the marked pairs [clients, tasks], as if these clients lacked these tasks."""
        sizes = np.where(pairs, 0, self.sizes)
        capacity = np.minimum(self.capacity, np.count_nonzero(sizes, axis=1))
        budget = self.budget * float(capacity.sum()) / max(self.processors, 1)
        return replace(self, sizes=sizes, share=sizes / np.maximum(sizes.sum(0), 1), capacity=capacity, budget=budget)

    def uniform(self, purpose: Purpose, columns: int = 1) -> NDArray[np.float64]:
        """Uniform random numbers of this round in [0, 1), [clients, columns]; a row depends on its client alone."""
        return clients_uniform(len(self.sizes), self.seed, purpose, self.round, columns=columns)

    def uniform_of(
        self, purpose: Purpose, client: NDArray[np.int64], column: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """The numbers of `uniform` for some clients, in the first or in the given columns, [len(client)]."""
        place = torch.from_numpy(np.zeros_like(client) if column is None else column)
        return np.asarray(uniform(self.seed, purpose, self.round, torch.from_numpy(client), place).numpy())

    def below(self, bound: float, purpose: Purpose, columns: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the numbers of `uniform` are below a bound: clients and columns, in the order of the clients. It is
        several times as fast as making the whole table."""
        return clients_below(bound, len(self.sizes), self.seed, purpose, self.round, columns=columns)

    def _of_same_clients(self, **changes: Any) -> "RoundView":
        """Other values of fields that do not say who is there: what was computed of the clients is shared."""
        return replace(self, **changes)._sharing(self._computed)

    def _sharing(self, computed: dict[str, Any]) -> "RoundView":
        """This view, with what has been computed of its clients, by name."""
        self._computed: dict[str, Any]
        object.__setattr__(self, "_computed", computed)
        return self
