"""The table of named methods: each an allocation x a local rule x an aggregation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmfl.aggregation import AGGREGATIONS, AggregationRule, Average, Unbiased
from mmfl.allocation import (
    ALLOCATIONS,
    AllocationRule,
    Full,
    LossVariance,
    RandomClients,
    RandomProcessors,
    RandomSplit,
    RotatingSplit,
)
from mmfl.errors import UserError, nearest
from mmfl.local import LOCAL_RULES, SGD, LocalRule
from mmfl.registry import build, find


@dataclass(frozen=True, eq=False)
class Method:
    """Who trains what, how they train, and how their updates are combined.

    >>> Method("mine", RandomClients(), Average()).name
    'mine'
    """

    name: str
    allocation: AllocationRule
    aggregation: AggregationRule
    local: LocalRule = field(default_factory=SGD)


@dataclass(frozen=True)
class Entry:
    """A row of the table: how to make the method, where it is from, and what it asks of the clients."""

    make: Callable[[], Method]
    summary: str
    paper: str
    trains: str = "drawn"
    evaluates: str = "none"


_MFA = "Bhuyan, Moharir & Joshi 2022"
_UCB = "Bhuyan & Moharir 2022"
_LVR = "Zhang et al. 2025"

METHODS: dict[str, Entry] = {
    "multi-fedavg": Entry(
        lambda: Method("multi-fedavg", RandomClients(), Average()),
        "random clients, one random task each",
        _UCB,
    ),
    "mfa-rand": Entry(
        lambda: Method("mfa-rand", RandomSplit(), Average()),
        "a new random split over the tasks every round",
        _MFA,
    ),
    "mfa-rr": Entry(
        lambda: Method("mfa-rr", RotatingSplit(), Average()),
        "a split rotates over the tasks, redrawn each frame",
        _MFA,
    ),
    "fedcluster": Entry(
        lambda: Method("fedcluster", RotatingSplit(redraw=False), Average()),
        "one split for ever, rotating over the tasks",
        "Chen et al. 2020",
    ),
    "random": Entry(
        lambda: Method("random", RandomProcessors(), Unbiased()),
        "every processor equally likely, unbiased step",
        _LVR,
    ),
    "mmfl-lvr": Entry(
        lambda: Method("mmfl-lvr", LossVariance(), Unbiased()),
        "probabilities that minimise the variance of the sampled loss",
        _LVR,
        evaluates="all",
    ),
    "full": Entry(
        lambda: Method("full", Full(), Unbiased()),
        "every client trains every task: the yardstick",
        _LVR,
        trains="all",
    ),
}


def make_method(method: str | Method | Mapping[str, Any]) -> Method:
    """A method from its name, from a table of parts, or as it is.

    >>> make_method("mmfl-lvr").name
    'mmfl-lvr'
    >>> make_method({"name": "mine", "allocation": "full", "aggregation": "average"}).name
    'mine'
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        made = find("method", method, {name: entry.make for name, entry in METHODS.items()})
        made = made() if callable(made) and not isinstance(made, Method) else made
        if not isinstance(made, Method):
            raise UserError(f"method '{method}' gives a {type(made).__name__}; expected an mmfl.Method.")
        return made
    if not isinstance(method, Mapping):
        raise UserError(f"method is {method!r}; expected a name, a table of parts or an mmfl.Method.")
    parts = {"name", "allocation", "aggregation", "local"}
    unknown = next((key for key in method if key not in parts), None)
    if unknown is not None:
        raise UserError(f"method: unknown key '{unknown}': {nearest(unknown, parts)}")
    lacking = next((key for key in ("name", "allocation", "aggregation") if key not in method), None)
    if lacking is not None:
        raise UserError(f"method: a table of parts needs '{lacking}'.")
    return Method(
        str(method["name"]),
        _part("allocation", method["allocation"], ALLOCATIONS, AllocationRule),
        _part("aggregation", method["aggregation"], AGGREGATIONS, AggregationRule),
        _part("local", method.get("local", "sgd"), LOCAL_RULES, LocalRule),
    )


def _part(kind: str, spec: Any, known: Mapping[str, Callable[..., Any]], expected: type) -> Any:
    part = build(kind, spec, known)
    if not isinstance(part, expected):
        raise UserError(f"{kind} {spec!r} gives a {type(part).__name__}; expected an mmfl.{expected.__name__}.")
    return part
