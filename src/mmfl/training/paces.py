"""All replicas of a run together, whatever their paces."""

from collections.abc import Callable, Iterator, Sequence

from mmfl.engine import Engine
from mmfl.pace.slots import AsynchronousPace
from mmfl.record import RoundRecord
from mmfl.training.asynchronous import asynchronous_rounds
from mmfl.training.loop import rounds
from mmfl.training.replica import Replica


def all_rounds(
    replicas: Sequence[Replica],
    engine: Engine,
    last: int,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    diagnose: bool = False,
    time_is_up: Callable[[], bool] = lambda: False,
) -> Iterator[list[RoundRecord]]:
    """One round after another of replicas with rounds and of those without, a record per replica, in their order."""
    without = [isinstance(each.method.pace, AsynchronousPace) for each in replicas]
    options = evaluate_every, evaluate_last, diagnose, time_is_up
    loops = [
        loop([each for each, wanted in zip(replicas, without, strict=True) if wanted == kind], engine, last, *options)
        for kind, loop in ((False, rounds), (True, asynchronous_rounds))
        if kind in without
    ]
    for records in zip(*loops, strict=True):
        by_replica = {(each.method, each.seed): each for part in records for each in part}
        yield [by_replica[each.method.name, each.seed] for each in replicas]
