"""The table of named methods. Each is an allocation, a local rule, an aggregation and a pace."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mmfl.aggregation import (
    AGGREGATIONS,
    MIFA,
    AggregationRule,
    Average,
    FedStale,
    FedVARP,
    Forecast,
    StaleVR,
    StaleVRE,
    Unbiased,
)
from mmfl.aggregation.noisy import NoisySum
from mmfl.aggregation.stale import LastUpdates
from mmfl.allocation import (
    ALLOCATIONS,
    AllocationRule,
    ExpectedResidualVariance,
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
from mmfl.local import LOCAL_RULES, LocalRule, PlainSGD, Scaffold
from mmfl.pace import PACES, Pace, RoundPace, Rounds
from mmfl.privacy import CentralNoise
from mmfl.registry import Spec, build, call, find, read_spec


@dataclass(frozen=True, eq=False)
class Method:
    """A method: who trains what (`allocation`), how clients train (`local`), how updates are combined (`aggregation`),
    and when (`pace`).

    >>> Method("my-method", RandomClients(), Average()).name
    'my-method'
    """

    name: str
    allocation: AllocationRule
    aggregation: AggregationRule
    local: LocalRule = field(default_factory=PlainSGD)
    pace: Pace = field(default_factory=Rounds)

    @property
    def needs_single_updates(self) -> str:
        """Which of the parts needs more of the updates than their weighted sum, and what; "" if none does.

        >>> make_method("fedstale").needs_single_updates
        'aggregation FedStale computes with single updates'
        """
        allocation = f"allocation {type(self.allocation).__name__}"
        if signals := self.allocation.needs & _SIGNALS_OF_UPDATES:
            return f"{allocation} draws by {' and '.join(sorted(signals)).replace('_', ' ')} of single updates"
        if self.allocation.observes_losses:
            return f"{allocation} follows the training losses of single clients"
        if type(self.local).observe is not LocalRule.observe:
            return f"local rule {type(self.local).__name__} remembers something of single updates"
        if not isinstance(self.pace, RoundPace):
            return f"pace {type(self.pace).__name__} takes single updates when they arrive"
        aggregation = f"aggregation {type(self.aggregation).__name__}"
        return "" if self.aggregation.sums_updates else f"{aggregation} computes with single updates"

    def with_noise(self, noise: CentralNoise | None) -> "Method":
        """The method with noise on the sums of its updates, if there is to be some."""
        if noise is None:
            return self
        if reason := self.needs_single_updates:
            raise UserError(
                f"central noise is added to sums of updates, but of method '{self.name}' {reason}; expected a method "
                "such as 'random', or noise at the clients (privacy)."
            )
        accounted = not (self.allocation.needs or self.allocation.observes_losses)
        return replace(self, aggregation=NoisySum(self.aggregation, noise, accounted))


_SIGNALS_OF_UPDATES = frozenset({"updates", "norms", "residuals", "expected_residuals"})
Part = Callable[..., Any] | AllocationRule | AggregationRule | LocalRule | Pace
"""A rule, or what makes one: its options are then options of the method."""


@dataclass(frozen=True)
class Entry:
    """A row of the table: the parts of a method, its paper, and what it requires of clients and server.

    `trains` and `evaluates` say which clients must train and evaluate in a round, `stores` what the server keeps for
    every pair that has trained. Unless they are given, they are what the parts declare.
    """

    allocation: Part
    aggregation: Part
    summary: str
    paper: str
    local: Part = field(default_factory=PlainSGD)
    pace: Part = field(default_factory=Rounds)
    trains: str = ""
    evaluates: str = ""
    stores: str = ""

    def __post_init__(self) -> None:
        allocation, aggregation, *_ = self.make()
        everyone = aggregation.needs_everyone or allocation.needs & {"norms", "residuals"}
        declared = {
            "trains": "all" if everyone else "drawn",
            "evaluates": "all" if "losses" in allocation.needs else "none",
            "stores": "updates" if isinstance(aggregation, LastUpdates) else "none",
        }
        for name, value in declared.items():
            object.__setattr__(self, name, getattr(self, name) or value)

    @property
    def make(self) -> Callable[..., tuple[AllocationRule, AggregationRule, LocalRule, Pace]]:
        """Makes the parts; every option goes to the part that takes it."""
        parts = (self.allocation, self.aggregation, self.local, self.pace)
        taken = [inspect.signature(part).parameters if callable(part) else {} for part in parts]

        def make(**options: Any) -> Any:
            given = ({key: value for key, value in options.items() if key in known} for known in taken)
            return tuple(part(**own) if callable(part) else part for part, own in zip(parts, given, strict=True))

        make.__signature__ = inspect.Signature([option for known in taken for option in known.values()])  # type: ignore[attr-defined]
        return make


_MFA = "Bhuyan, Moharir & Joshi 2022"
_UCB = "Bhuyan & Moharir 2022"
_LVR = "Zhang et al. 2025"
_GVR = "Zhang et al. 2024"
_GROUP = "Gong et al."
_OURS = "this project"


def _with_warm_up(rule: AllocationRule, warm_up: bool) -> AllocationRule:
    return WarmUp(rule) if warm_up else rule


def _systematic_lvr(floor: float = FLOOR, mix: float = 0.0) -> LossVariance:
    return LossVariance(floor, mix, "systematic")


METHODS: dict[str, Entry] = {
    "fedavg": Entry(
        partial(SequentialTasks, RandomClients()),
        Average(),
        "one task after another, each for a number of rounds",
        "McMahan et al. 2017",
    ),
    "multi-fedavg": Entry(
        lambda warm_up=False: _with_warm_up(RandomClients(), warm_up),
        Average(),
        "random clients, one random task each",
        _UCB,
    ),
    "ranklist-multi-ucb": Entry(
        lambda gamma=0.99, warm_up=True: _with_warm_up(Ranklist(gamma), warm_up),
        Average(),
        "tasks take turns to pick the client with the highest bandit index",
        _UCB,
        trains="all, once",
    ),
    "pareto-multi-ucb": Entry(
        lambda gamma=0.99, fill=False, warm_up=True: _with_warm_up(Pareto(gamma, fill), warm_up),
        Average(),
        "clients on the Pareto front of the bandit indices",
        _UCB,
        trains="all, once",
    ),
    "mfa-rand": Entry(RandomSplit(), Average(), "a new random split over the tasks every round", _MFA),
    "mfa-rr": Entry(RotatingSplit(), Average(), "a split that rotates over the tasks and is redrawn each frame", _MFA),
    "fedcluster": Entry(FixedSplit(), Average(), "one fixed split that rotates over the tasks", "Chen et al. 2020"),
    "random": Entry(RandomProcessors, Unbiased(), "every processor with the same probability, unbiased", _LVR),
    "mmfl-gvr": Entry(
        UpdateVariance, Unbiased(), "probabilities that minimise the variance of the sampled update", _GVR
    ),
    "mmfl-gvr-star": Entry(UpdateVariance, FedVARP, "GVR, with stale updates for clients that are not drawn", _GVR),
    "mmfl-lvr": Entry(LossVariance, Unbiased(), "probabilities that minimise the variance of the sampled loss", _LVR),
    "mmfl-stalevr": Entry(LossVariance, StaleVR, "LVR, with stale updates weighted optimally", _LVR),
    "stalevr-opt": Entry(ResidualVariance, StaleVR, "StaleVR, sampled by what stale updates do not explain", _OURS),
    "mmfl-stalevre": Entry(LossVariance, StaleVRE, "StaleVR with estimated weights: only drawn clients train", _LVR),
    "lvr-systematic": Entry(_systematic_lvr, Unbiased(), "LVR with a fixed number of trainings per round", _OURS),
    "stalevre-systematic": Entry(
        _systematic_lvr, StaleVRE, "StaleVRE with a fixed number of trainings per round", _OURS
    ),
    "fedvarp": Entry(
        RandomProcessors, FedVARP, "stale updates stand in for clients that are not drawn", "Jhunjhunwala et al. 2022"
    ),
    "fedstale": Entry(RandomProcessors, FedStale, "stale updates stand in with weight beta", "Rodio & Neglia 2024"),
    "mifa": Entry(RandomProcessors, MIFA, "the mean of all clients' latest updates", "Gu et al. 2021"),
    "scaffold": Entry(
        RandomProcessors,
        Unbiased(),
        "control variates against client drift",
        "Karimireddy et al. 2020",
        local=Scaffold,
        stores="controls",
    ),
    "roundrobin-gvr": Entry(
        lambda floor=FLOOR, mix=0.0, draw="independent": RoundRobinTasks(UpdateVariance(floor, mix, draw)),
        Unbiased(),
        "the whole budget for one task per round, sampled by GVR",
        _LVR,
        trains="all, one task",
    ),
    "mmfl-group": Entry(
        partial(Groups, True),
        Average,
        "clusters of clients with similar losses rotate over the tasks",
        _GROUP,
        evaluates="all, at times",
    ),
    "mmfl-group-inconsistent": Entry(
        partial(Groups, False),
        Average,
        "like mmfl-group, clustered by one task at a time",
        _GROUP,
        evaluates="all, at times",
    ),
    "fedfair": Entry(Fair, Average(), "more clients for the tasks with the highest losses", "Siew et al. 2024"),
    "forecast": Entry(
        ExpectedResidualVariance,
        Forecast,
        "stale updates as forecasts, sampled by how wrong they are expected to be",
        _OURS,
    ),
    "full": Entry(Full(), Unbiased(), "every client trains every task: the reference", _LVR, trains="all"),
}


def make_method(method: str | Method | Mapping[str, Any], pace: Spec | Pace | None = None) -> Method:
    """The method for a name, a name with options, or a table of parts; a `Method` is returned as it is.

    A `pace` is that of methods that have none of their own.

    >>> make_method("mmfl-lvr").name
    'mmfl-lvr'
    >>> make_method({"method": "fedstale", "beta": 0.2}).name
    'fedstale(beta=0.2)'
    >>> make_method({"name": "my-method", "allocation": "full", "aggregation": "average"}).name
    'my-method'
    """
    if isinstance(method, Mapping) and "pace" in method:
        pace = method["pace"]
        method = {key: value for key, value in method.items() if key != "pace"} | _name_with(method, pace)
        return replace(_make(method), pace=make_pace(pace))
    made = _make(method)
    return made if pace is None or type(made.pace) is not Rounds else replace(made, pace=make_pace(pace))


def make_pace(pace: Spec | Pace) -> Pace:
    """The pace for a name, or a name with options."""
    made = build("pace", pace, PACES) if isinstance(pace, str | Mapping) else pace
    if not isinstance(made, Pace):
        raise UserError(f"pace {pace!r} gives a {type(made).__name__}; expected an mmfl pace, such as 'barrier'.")
    return made


def _name_with(method: Mapping[str, Any], pace: Any) -> dict[str, str]:
    """The name of a method of the table with a pace, where it has not been given one."""
    if "method" not in method or "name" in method:
        return {}
    options = {key: value for key, value in method.items() if key not in ("method", "pace")}
    name, settings = read_spec("pace", pace) if isinstance(pace, str | Mapping) else (pace.name, {})
    known = f"{name}({_describe(settings)})" if settings else name
    return {"name": f"{method['method']}({_describe({**options, 'pace': known})})"}


def _describe(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


def _make(method: str | Method | Mapping[str, Any]) -> Method:
    """The method, with the pace of its row in the table."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return _find_method(method, {}, None)
    if not isinstance(method, Mapping):
        raise UserError(f"method is {method!r}; expected a name, a table of parts or an mmfl.Method.")
    if "method" in method:
        options = dict(method)
        known_as, name = str(options.pop("method")), options.pop("name", None)
        return _find_method(known_as, options, None if name is None else str(name))
    parts = {"name", "allocation", "aggregation", "local", "pace"}
    unknown = next((key for key in method if key not in parts), None)
    if unknown is not None:
        raise UserError(f"method: unknown key '{unknown}': {nearest(unknown, parts)}")
    missing = next((key for key in ("name", "allocation", "aggregation") if key not in method), None)
    if missing is not None:
        raise UserError(f"method: a table of parts needs '{missing}'.")
    return Method(
        str(method["name"]),
        _build_part("allocation", method["allocation"], ALLOCATIONS, AllocationRule),
        _build_part("aggregation", method["aggregation"], AGGREGATIONS, AggregationRule),
        _build_part("local", method.get("local", "sgd"), LOCAL_RULES, LocalRule),
    )


def _find_method(method: str, options: Mapping[str, Any], name: str | None) -> Method:
    """A method of the table, or what a dotted path points to, with options."""
    if method in METHODS:
        parts = call("method", method, METHODS[method].make, options)
        settings = _describe(options)
        return Method(name or (f"{method}({settings})" if settings else method), *parts)
    found = find("method", method, METHODS)
    found = call("method", method, found, options) if callable(found) and not isinstance(found, Method) else found
    if not isinstance(found, Method):
        raise UserError(f"method '{method}' gives a {type(found).__name__}; expected an mmfl.Method.")
    return found if name is None else replace(found, name=name)


def _build_part(kind: str, spec: Any, known: Mapping[str, Callable[..., Any]], expected: type) -> Any:
    part = build(kind, spec, known)
    if not isinstance(part, expected):
        raise UserError(f"{kind} {spec!r} gives a {type(part).__name__}; expected an mmfl.{expected.__name__}.")
    return part
