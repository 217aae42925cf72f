"""The round loop: Algorithm 1 of Zhang et al. 2025, for one replica or many in lockstep."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.diagnostics import Tally, loss_variance, round_cost, step_size, update_variance
from mmfl.engine import Engine, Evaluation, Training, Workload
from mmfl.federation import Federation, RoundView
from mmfl.methods import Method
from mmfl.objectives import lower_is_better
from mmfl.updates import Updates

Record = dict[str, Any]


@dataclass
class State:
    """All that a replica remembers from round to round; a checkpoint is this and nothing else."""

    round: int
    weights: list[Tensor]
    allocation: Any
    aggregation: list[Any]
    tally: Tally


@dataclass(eq=False)
class Replica:
    """One method with one seed on one federation. Replicas share nothing but the engine that runs them."""

    federation: Federation
    method: Method
    seed: int
    rate: float
    state: State

    @classmethod
    def start(cls, federation: Federation, method: Method, seed: int, rate: float, engine: Engine) -> "Replica":
        """A replica before its first round."""
        clients, tasks = federation.clients, len(federation.tasks)
        weights = [engine.initial(federation, s, seed) for s in range(tasks)]
        state = State(
            0,
            weights,
            method.allocation.start(clients, tasks),
            [method.aggregation.start(clients, w) for w in weights],
            Tally.start(clients, tasks),
        )
        return cls(federation, method, seed, rate, state)

    def view(self, round: int) -> RoundView:
        """Who is there, how much data, what capacity."""
        return self.federation.view(round, rate=self.rate, seed=self.seed)

    def allocate(self, view: RoundView) -> Allocation:
        """Who trains what in this round."""
        allocation, self.state.allocation = self.method.allocation.allocate(view, self.state.allocation)
        return allocation

    def aggregate(self, updates: Sequence[Updates], view: RoundView) -> None:
        """The next global weights of every task."""
        for s, received in enumerate(updates):
            self.state.weights[s], self.state.aggregation[s] = self.method.aggregation.aggregate(
                self.state.weights[s], received, view, self.state.aggregation[s]
            )
        self.state.round = view.round


def rounds(
    replicas: Sequence[Replica], engine: Engine, last: int, evaluate_every: int = 1, diagnose: bool = False
) -> Iterator[list[Record]]:
    """One federated round after another, all replicas in lockstep; yields what happened, a record per replica."""
    for t in range(replicas[0].state.round + 1, last + 1):
        begun = time.perf_counter()
        views = measure(engine, replicas, [replica.view(t) for replica in replicas], diagnose)
        allocations = [replica.allocate(view) for replica, view in zip(replicas, views, strict=True)]
        returned = train(engine, replicas, allocations, t)
        received = [[updates.valid() for updates in tasks] for tasks in returned]
        for replica, view, updates in zip(replicas, views, received, strict=True):
            replica.aggregate(updates, view)
        tested = evaluate(engine, replicas, t) if t % evaluate_every == 0 or t == last else [{} for _ in replicas]
        seconds = (time.perf_counter() - begun) / len(replicas)
        yield [
            record(replica, view, allocation, back, good, tests, seconds)
            for replica, view, allocation, back, good, tests in zip(
                replicas, views, allocations, returned, received, tested, strict=True
            )
        ]


def measure(engine: Engine, replicas: Sequence[Replica], views: Sequence[RoundView], diagnose: bool) -> list[RoundView]:
    """Adds to each view the signals that its allocation needs (or all, for diagnosis); one pass per task."""
    asked = [n for n, r in enumerate(replicas) if diagnose or "losses" in r.method.allocation.needs]
    pairs = [(n, s) for n in asked for s in range(len(replicas[n].federation.tasks)) if views[n].able[:, s].any()]
    workloads = [
        Workload(replicas[n].federation, s, replicas[n].state.weights[s], np.flatnonzero(views[n].able[:, s]))
        for n, s in pairs
    ]
    losses: dict[int, NDArray[np.float64]] = {n: np.zeros(views[n].sizes.shape) for n in asked}
    for (n, s), workload, measured in zip(pairs, workloads, engine.losses(workloads), strict=True):
        losses[n][workload.client, s] = measured
    return [view.with_signals(losses=losses[n]) if n in losses else view for n, view in enumerate(views)]


def train(
    engine: Engine, replicas: Sequence[Replica], allocations: Sequence[Allocation], round: int
) -> list[list[Updates]]:
    """Local training of everything that was allocated, in one request; updates by replica and task."""
    trainings = [
        Training(r.federation, s, r.state.weights[s], a.client[a.rows(s)], round, r.seed, r.method.local)
        for r, a in zip(replicas, allocations, strict=True)
        for s in range(len(r.federation.tasks))
    ]
    answers = iter(engine.train(trainings))
    return [
        [Updates.of(s, next(answers), allocation) for s in range(len(replica.federation.tasks))]
        for replica, allocation in zip(replicas, allocations, strict=True)
    ]


def evaluate(engine: Engine, replicas: Sequence[Replica], round: int) -> list[dict[int, Evaluation]]:
    """Test results of every replica's tasks that have arrived."""
    pairs = [(n, s) for n, r in enumerate(replicas) for s in np.flatnonzero(r.federation.present_tasks(round)).tolist()]
    nobody = np.zeros(0, dtype=np.int64)
    workloads = [Workload(replicas[n].federation, s, replicas[n].state.weights[s], nobody) for n, s in pairs]
    results: list[dict[int, Evaluation]] = [{} for _ in replicas]
    for (n, s), result in zip(pairs, engine.evaluate(workloads), strict=True):
        results[n][s] = result
    return results


def record(
    replica: Replica,
    view: RoundView,
    allocation: Allocation,
    returned: Sequence[Updates],
    received: Sequence[Updates],
    tested: dict[int, Evaluation],
    seconds: float,
) -> Record:
    """What happened in a round, as plain numbers."""
    federation, state = replica.federation, replica.state
    here = federation.present_tasks(view.round)
    step_sizes = np.array([step_size(u, view) if here[u.task] else np.nan for u in received])
    state.tally.add(allocation, step_sizes)
    tasks = {}
    for s in np.flatnonzero(here).tolist():
        updates = received[s]
        tasks[federation.tasks[s].name] = {
            "metric": _number(tested[s].metric) if s in tested else None,
            "loss": _number(tested[s].loss) if s in tested else None,
            "training_loss": _number(np.average(updates.loss, weights=updates.count)) if len(updates) else None,
            "active": len(updates),
            "rejected": len(returned[s]) - len(updates),
            "step_size": _number(step_sizes[s]),
            "step_size_variance": _number(state.tally.step_size_variance[s]),
            "loss_variance": _number(loss_variance(view, allocation, s)),
            "update_variance": _number(update_variance(view, allocation, updates)),
        }
    evaluated = view.able if "losses" in replica.method.allocation.needs else None
    cost = round_cost(allocation, evaluated, [len(w) for w in state.weights], state.aggregation)
    return {
        "round": view.round,
        "method": replica.method.name,
        "seed": replica.seed,
        **_overall(federation, tested),
        "tasks": tasks,
        "clients": federation.clients,
        "clients_seen": state.tally.clients_seen,
        "cost": asdict(cost),
        "drawn": {
            task.name: [allocation.client[rows].tolist(), allocation.count[rows].tolist()]
            for s, task in enumerate(federation.tasks)
            if len(rows := allocation.rows(s))
        },
        "seconds": round_to(seconds),
    }


def _overall(federation: Federation, tested: dict[int, Evaluation]) -> Record:
    """Mean and worst task, over the tasks whose metric is a score (over all, where none is)."""
    scores = {s: e.metric for s, e in tested.items() if not lower_is_better(federation.tasks[s].metric)}
    values = list(scores.values()) or [e.metric for e in tested.values()]
    if not values:
        return {"mean": None, "worst": None}
    return {"mean": _number(np.mean(values)), "worst": _number(min(values) if scores else max(values))}


def _number(value: Any) -> float | None:
    """A plain float for the record; None where there is no number."""
    return float(value) if value is not None and np.isfinite(value) else None


def round_to(seconds: float) -> float:
    """Seconds to the tenth of a millisecond."""
    return float(f"{seconds:.4f}")
