"""The record of a round: what happened in it, as plain numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.engine import Evaluation
from mmfl.federation import Federation
from mmfl.federation.task import Task
from mmfl.record import ClientSpread, Drawn, LastTest, RoundRecord, TaskRecord
from mmfl.training.diagnostics import loss_variance, probability_quantiles, round_cost, step_size
from mmfl.training.round import Round, RoundTests
from mmfl.updates.batch_norm import BatchNorm, SharedBatchNorm


def record(each: Round, tests: RoundTests, seconds: float, stored_bytes: int, faults: Mapping[str, int]) -> RoundRecord:
    """What happened in a round, as plain numbers; the replica keeps the details of its last test."""
    replica, view, allocation, arrived = each.replica, each.view, each.allocation, each.arrived
    federation, state, tested, averaged = replica.federation, replica.state, tests.current, tests.average
    here = federation.present_tasks(view.round)
    step_sizes = np.array(
        [step_size(each.outcomes[s].drawn, view) if here[s] else np.nan for s in range(len(federation.tasks))]
    )
    state.tally.add(arrived, step_sizes)
    replica.tested |= {
        federation.tasks[s].name: _last_test(view.round, found, federation.client_names)
        for s, found in tested.items()
        if found.clients is not None or found.tables
    }
    tasks = {}
    for s in np.flatnonzero(here).tolist():
        outcome = each.outcomes[s]
        updates = outcome.drawn
        tasks[federation.tasks[s].name] = TaskRecord(
            metric=_number(tested[s].metric) if s in tested else None,
            loss=_number(tested[s].loss) if s in tested else None,
            training_loss=_number(np.average(updates.loss, weights=updates.count)) if len(updates) else None,
            active=len(updates),
            rejected=outcome.rejected,
            step_size=_number(step_sizes[s]),
            step_size_variance=_number(state.tally.step_size_variance[s]),
            loss_variance=_number(loss_variance(view, allocation, s)),
            update_variance=_number(outcome.variance),
            average_metric=_number(averaged[s].metric) if s in averaged else None,
            average_loss=_number(averaged[s].loss) if s in averaged else None,
            metrics={name: _number(value) for name, value in tested[s].metrics.items()} if s in tested else {},
            clients=_spread(federation.tasks[s], tested[s]) if s in tested else None,
            extras={
                **probability_quantiles(view, allocation, s),
                **replica.method.aggregation.report(each.view_of(s), s, state.aggregation[s]),
            },
        )
    cost = round_cost(
        allocation,
        each.asked.get("losses"),
        each.trained_anyway,
        [len(w) + _sent_statistics(norm) for w, norm in zip(state.weights, state.batch_norm, strict=True)],
        stored_bytes,
        replica.method.local.downloads,
        arrived,
    )
    mean, worst = _mean_and_worst(federation, tested)
    average_mean, average_worst = _mean_and_worst(federation, averaged)
    return RoundRecord(
        round=view.round,
        method=replica.method.name,
        seed=replica.seed,
        mean=mean,
        worst=worst,
        average_mean=average_mean,
        average_worst=average_worst,
        tasks=tasks,
        clients=federation.clients,
        clients_seen=state.tally.clients_seen,
        cost=cost,
        drawn={
            task.name: Drawn(arrived.client[rows].tolist(), arrived.count[rows].tolist())
            for s, task in enumerate(federation.tasks)
            if len(rows := arrived.rows(s))
        },
        extras={**replica.method.allocation.report(view, state.allocation), **_privacy(each)},
        seconds=round_to(seconds),
        faults=dict(faults),
        time=None if each.timed is None else each.timed.record(view),
    )


def _privacy(each: Round) -> dict[str, float]:
    """The largest epsilon of a client so far, where the server adds noise to sums."""
    spent = each.replica.method.aggregation.spent(each.replica.state.aggregation)
    return {} if spent is None else {"epsilon": round_to(spent.largest)}


def _mean_and_worst(federation: Federation, tested: Mapping[int, Evaluation]) -> tuple[float | None, float | None]:
    """Mean and worst task, over the tasks whose metric is a score (over all, where none is)."""
    scores = [e.metric for s, e in tested.items() if not federation.tasks[s].main_metric.lower_is_better]
    values = scores or [e.metric for e in tested.values()]
    if not values:
        return None, None
    return _number(np.mean(values)), _number(np.min(values) if scores else np.max(values))


def _spread(task: Task, tested: Evaluation) -> ClientSpread | None:
    """How the main metric differs from client to client; None where test examples are shared."""
    if tested.clients is None:
        return None
    values = np.sort(tested.clients.value[np.isfinite(tested.clients.value)])
    undefined = len(tested.clients.value) - len(values)
    if not len(values):
        return ClientSpread(undefined=undefined)
    worst = values[::-1] if task.main_metric.lower_is_better else values
    least, lower, median, upper, most = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
    squares = float(np.square(values).sum())
    return ClientSpread(
        clients=len(values),
        undefined=undefined,
        mean=float(values.mean()),
        worst_tenth=float(worst[: -(-len(values) // 10)].mean()),
        deviation=float(values.std()),
        least=least,
        lower_quartile=lower,
        median=median,
        upper_quartile=upper,
        most=most,
        fairness=float(values.sum()) ** 2 / (len(values) * squares) if squares and least >= 0 else None,
    )


def _last_test(round: int, tested: Evaluation, names: NDArray[Any]) -> LastTest:
    """What a test found besides single numbers."""
    tables = {name: table.tolist() for name, table in tested.tables.items()}
    if tested.clients is None:
        return LastTest(round, tables=tables)
    found = tested.clients
    values = [_number(value) for value in found.value]
    known = () if np.array_equal(names, np.arange(len(names))) else names[found.client].tolist()
    return LastTest(round, found.client.tolist(), found.examples.tolist(), values, tables, known)


def _sent_statistics(batch_norm: BatchNorm | None) -> int:
    """How many statistics of batch norm travel with the weights."""
    return len(batch_norm.values) if isinstance(batch_norm, SharedBatchNorm) else 0


def _number(value: Any) -> float | None:
    """A plain float for the record; None where there is no number."""
    return float(value) if value is not None and np.isfinite(value) else None


def round_to(seconds: float) -> float:
    """Seconds to the tenth of a millisecond."""
    return float(f"{seconds:.4f}")
