"""The table of named methods: each an allocation x a local rule x an aggregation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmfl.aggregation import (
    AGGREGATIONS,
    MIFA,
    AggregationRule,
    Average,
    FedStale,
    FedVARP,
    StaleVR,
    StaleVRE,
    Unbiased,
)
from mmfl.allocation import (
    ALLOCATIONS,
    AllocationRule,
    Fair,
    FixedSplit,
    Full,
    Groups,
    LossVariance,
    Pareto,
    RandomClients,
    RandomProcessors,
    RandomSplit,
    Ranklist,
    ResidualVariance,
    RotatingSplit,
    RoundRobinTasks,
    SequentialTasks,
    UpdateVariance,
    WarmUp,
)
from mmfl.allocation.variance import FLOOR
from mmfl.errors import UserError, nearest
from mmfl.local import LOCAL_RULES, SGD, LocalRule, Scaffold
from mmfl.registry import build, call, find
from mmfl.updates.store import StorageOptions


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
    """A row of the table: how to make the method, where it is from, and what it asks of clients and server.

    `trains` and `evaluates` say which clients must do so, `stores` what the server keeps of every pair it has seen.
    `make` takes the method's options by keyword and returns allocation, aggregation and, where it is not SGD, the
    local rule.
    """

    make: Callable[..., tuple[AllocationRule, AggregationRule] | tuple[AllocationRule, AggregationRule, LocalRule]]
    summary: str
    paper: str
    trains: str = "drawn"
    evaluates: str = "none"
    stores: str = "none"


_MFA = "Bhuyan, Moharir & Joshi 2022"
_UCB = "Bhuyan & Moharir 2022"
_LVR = "Zhang et al. 2025"
_GVR = "Zhang et al. 2024"
_GROUP = "Gong et al."
_UPDATES = "updates"


def _warmed(rule: AllocationRule, warm_up: bool) -> AllocationRule:
    return WarmUp(rule) if warm_up else rule


METHODS: dict[str, Entry] = {
    "fedavg": Entry(
        lambda rounds=100: (SequentialTasks(RandomClients(), rounds), Average()),
        "one task after another, each alone for so many rounds",
        "McMahan et al. 2017",
    ),
    "multi-fedavg": Entry(
        lambda warm_up=False: (_warmed(RandomClients(), warm_up), Average()),
        "random clients, one random task each",
        _UCB,
    ),
    "ranklist-multi-ucb": Entry(
        lambda gamma=0.99, warm_up=True: (_warmed(Ranklist(gamma), warm_up), Average()),
        "tasks in turn pick the client of highest bandit index",
        _UCB,
        trains="all, once",
    ),
    "pareto-multi-ucb": Entry(
        lambda gamma=0.99, fill=False, warm_up=True: (_warmed(Pareto(gamma, fill), warm_up), Average()),
        "clients whose bandit indices no other client beats",
        _UCB,
        trains="all, once",
    ),
    "mfa-rand": Entry(
        lambda: (RandomSplit(), Average()),
        "a new random split over the tasks every round",
        _MFA,
    ),
    "mfa-rr": Entry(
        lambda: (RotatingSplit(), Average()),
        "a split rotates over the tasks, redrawn each frame",
        _MFA,
    ),
    "fedcluster": Entry(
        lambda: (FixedSplit(), Average()),
        "one split for ever, rotating over the tasks",
        "Chen et al. 2020",
    ),
    "random": Entry(
        lambda draw="independent": (RandomProcessors(draw), Unbiased()),
        "every processor equally likely, unbiased step",
        _LVR,
    ),
    "mmfl-gvr": Entry(
        lambda floor=FLOOR, mix=0.0, draw="independent": (UpdateVariance(floor, mix, draw), Unbiased()),
        "probabilities that minimise the variance of the sampled update",
        _GVR,
        trains="all",
    ),
    "mmfl-gvr-star": Entry(
        lambda keep=None, floor=FLOOR, mix=0.0, draw="independent": (UpdateVariance(floor, mix, draw), FedVARP(keep)),
        "GVR with last updates for those not drawn",
        _GVR,
        trains="all",
        stores=_UPDATES,
    ),
    "mmfl-lvr": Entry(
        lambda floor=FLOOR, mix=0.0, draw="independent": (LossVariance(floor, mix, draw), Unbiased()),
        "probabilities that minimise the variance of the sampled loss",
        _LVR,
        evaluates="all",
    ),
    "mmfl-stalevr": Entry(
        lambda keep=None, floor=FLOOR, mix=0.0, draw="independent": (LossVariance(floor, mix, draw), StaleVR(keep)),
        "LVR, and last updates weighted as they explain the new ones",
        _LVR,
        trains="all",
        evaluates="all",
        stores=_UPDATES,
    ),
    "stalevr-opt": Entry(
        lambda keep=None, floor=FLOOR, mix=0.0, draw="independent": (ResidualVariance(floor, mix, draw), StaleVR(keep)),
        "StaleVR, sampled by what last updates do not explain",
        "this project",
        trains="all",
        stores=_UPDATES,
    ),
    "mmfl-stalevre": Entry(
        lambda keep=None, floor=FLOOR, mix=0.0, draw="independent": (LossVariance(floor, mix, draw), StaleVRE(keep)),
        "StaleVR with estimated weights: only the drawn train",
        _LVR,
        evaluates="all",
        stores=_UPDATES,
    ),
    "lvr-systematic": Entry(
        lambda floor=FLOOR, mix=0.0: (LossVariance(floor, mix, "systematic"), Unbiased()),
        "LVR with an exact number of trainings a round",
        "this project",
        evaluates="all",
    ),
    "stalevre-systematic": Entry(
        lambda keep=None, floor=FLOOR, mix=0.0: (LossVariance(floor, mix, "systematic"), StaleVRE(keep)),
        "StaleVRE with an exact number of trainings a round",
        "this project",
        evaluates="all",
        stores=_UPDATES,
    ),
    "fedvarp": Entry(
        lambda keep=None, draw="independent": (RandomProcessors(draw), FedVARP(keep)),
        "last updates stand in for those not drawn",
        "Jhunjhunwala et al. 2022",
        stores=_UPDATES,
    ),
    "fedstale": Entry(
        lambda beta=0.5, keep=None, draw="independent": (RandomProcessors(draw), FedStale(beta, keep)),
        "last updates stand in with weight beta",
        "Rodio & Neglia 2024",
        stores=_UPDATES,
    ),
    "mifa": Entry(
        lambda keep=None, draw="independent": (RandomProcessors(draw), MIFA(keep)),
        "the mean of everyone's latest update",
        "Gu et al. 2021",
        stores=_UPDATES,
    ),
    "scaffold": Entry(
        lambda keep=None, draw="independent": (RandomProcessors(draw), Unbiased(), Scaffold(StorageOptions.of(keep))),
        "control variates against the drift of local steps",
        "Karimireddy et al. 2020",
        stores="controls",
    ),
    "roundrobin-gvr": Entry(
        lambda floor=FLOOR, mix=0.0, draw="independent": (
            RoundRobinTasks(UpdateVariance(floor, mix, draw)),
            Unbiased(),
        ),
        "all the budget to one task a round, sampled by GVR",
        _LVR,
        trains="all, one task",
    ),
    "mmfl-group": Entry(
        lambda weighted=True, standardise=True, metric="cosine", largest=None: (
            Groups(True, standardise, metric, largest),
            Average(weighted),
        ),
        "clusters of clients with similar losses rotate over the tasks",
        _GROUP,
        evaluates="all, at times",
    ),
    "mmfl-group-inconsistent": Entry(
        lambda weighted=True, standardise=True, metric="cosine", largest=None: (
            Groups(False, standardise, metric, largest),
            Average(weighted),
        ),
        "as mmfl-group, clustered on one task at a time",
        _GROUP,
        evaluates="all, at times",
    ),
    "fedfair": Entry(
        lambda alpha=3.0, draw="independent": (Fair(alpha, draw), Average()),
        "more clients for the tasks that do badly",
        "Siew et al. 2024",
    ),
    "full": Entry(
        lambda: (Full(), Unbiased()),
        "every client trains every task: the yardstick",
        _LVR,
        trains="all",
    ),
}


def make_method(method: str | Method | Mapping[str, Any]) -> Method:
    """A method from its name, from its name and options, from a table of parts, or as it is.

    >>> make_method("mmfl-lvr").name
    'mmfl-lvr'
    >>> make_method({"method": "fedstale", "beta": 0.2}).name
    'fedstale(beta=0.2)'
    >>> make_method({"name": "mine", "allocation": "full", "aggregation": "average"}).name
    'mine'
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return _named(method, {}, None)
    if not isinstance(method, Mapping):
        raise UserError(f"method is {method!r}; expected a name, a table of parts or an mmfl.Method.")
    if "method" in method:
        options = dict(method)
        named, name = str(options.pop("method")), options.pop("name", None)
        return _named(named, options, None if name is None else str(name))
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


def _named(method: str, options: Mapping[str, Any], name: str | None) -> Method:
    """A method of the table with options, or what a dotted path makes."""
    if method in METHODS:
        parts = call("method", method, METHODS[method].make, options)
        settings = ", ".join(f"{key}={value}" for key, value in options.items())
        return Method(name or (f"{method}({settings})" if settings else method), *parts)
    made = find("method", method, METHODS)
    made = call("method", method, made, options) if callable(made) and not isinstance(made, Method) else made
    if not isinstance(made, Method):
        raise UserError(f"method '{method}' gives a {type(made).__name__}; expected an mmfl.Method.")
    return made if name is None else replace(made, name=name)


def _part(kind: str, spec: Any, known: Mapping[str, Callable[..., Any]], expected: type) -> Any:
    part = build(kind, spec, known)
    if not isinstance(part, expected):
        raise UserError(f"{kind} {spec!r} gives a {type(part).__name__}; expected an mmfl.{expected.__name__}.")
    return part
