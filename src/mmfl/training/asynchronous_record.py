"""The record of a part of an asynchronous run: that of a round, with staleness and the clock."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mmfl.record import MAX_SPANS, Cost, RoundRecord, Span, Timing
from mmfl.training.asynchronous_round import AsynchronousRound
from mmfl.training.clock import rounded
from mmfl.training.record import record
from mmfl.training.round import RoundTests
from mmfl.updates.batch_norm import SharedBatchNorm


def record_asynchronous(
    each: AsynchronousRound, tests: RoundTests, seconds: float, stored_bytes: int, faults: Mapping[str, int]
) -> RoundRecord:
    """What happened, as plain numbers."""
    found = record(each, tests, seconds, stored_bytes, faults)
    tasks = dict(found.tasks)
    for s, name in enumerate(each.federation.task_names):
        if name in tasks:
            tasks[name] = replace(tasks[name], extras={**tasks[name].extras, **_staleness(each, s)})
    return replace(found, tasks=tasks, cost=_cost(each, found.cost), time=_timing(each))


def _staleness(each: AsynchronousRound, task: int) -> dict[str, float]:
    """How many versions old the updates were that were aggregated, and how many versions there are."""
    sent = each.outcomes[task].drawn.sent
    known = {"version": float(each.requesting.made[task])}
    if sent is None or not len(sent.staleness):
        return known
    median, most = np.quantile(sent.staleness, [0.5, 1.0]).tolist()
    mean = float(sent.staleness.mean())
    return {**known, "staleness_mean": mean, "staleness_median": median, "staleness_max": most}


def _cost(each: AsynchronousRound, cost: Cost) -> Cost:
    """A training for every arrival; weights travel to everyone who was asked, lost or not."""
    state, before = each.replica.state, each.before
    lengths = np.array(
        [
            len(weights) + (len(norm.values) if isinstance(norm, SharedBatchNorm) else 0)
            for weights, norm in zip(state.weights, state.batch_norm, strict=True)
        ]
    )
    asked = np.array(each.requesting.queue.state.tallies.sent) - before.sent
    arrived = np.bincount([request.task for request in each.returned], minlength=len(lengths))
    downloads = each.replica.method.local.downloads
    return replace(
        cost,
        trainings=len(each.returned),
        processors=len(each.returned),
        bytes_up=int(4 * arrived @ lengths),
        bytes_down=int(4 * downloads * asked @ lengths),
    )


def _timing(each: AsynchronousRound) -> Timing:
    """The clock: how long clients worked, of what the slots offered, and what was in vain."""
    queue, before = each.requesting.queue, each.before
    tallies, slots = queue.state.tallies, each.requesting.state.pace.total
    wasted = {"lost": sum(tallies.seconds_lost), "cancelled": sum(tallies.seconds_cancelled)}
    dropped = {"lost": sum(tallies.lost), "cancelled": sum(tallies.cancelled)}
    dropped["failed"] = sum(each.rejected.values())
    counted = {cause: number - before.dropped.get(cause, 0) for cause, number in dropped.items()}
    spent = {cause: number - before.wasted[cause] for cause, number in wasted.items()}
    chosen = np.unique(np.linspace(0, len(each.returned) - 1, min(len(each.returned), MAX_SPANS)).astype(np.int64))
    names, pace = each.federation.task_names, each.requesting.state.pace
    ended = {name: time for name, time in zip(names, pace.ended, strict=True) if time is not None}
    slots_of_task = dict(zip(names, pace.of_task, strict=True)) if pace.of_task is not None else {}
    return Timing(
        rounded(before.time),
        rounded(queue.time),
        busy=rounded(each.requesting.seconds_worked() - before.worked),
        offered=rounded(slots * (queue.time - before.time)),
        wasted={cause: rounded(number) for cause, number in spent.items() if number},
        dropped={cause: number for cause, number in counted.items() if number},
        extras={
            **{f"ended_{task}": rounded(time) for task, time in ended.items()},
            **{f"slots_{task}": number for task, number in slots_of_task.items()},
        },
        spans=tuple(
            Span(request.client, request.task, rounded(request.begun), rounded(request.arrival))
            for request in (each.returned[n] for n in chosen.tolist())
        ),
    )
