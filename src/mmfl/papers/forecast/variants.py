"""The variants of `forecast` that the ablation compares with it: its steps one by one, and candidates."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mmfl.aggregation import AggregationRule, Forecast
from mmfl.allocation import AllocationRule, ExpectedResidualVariance, RandomProcessors
from mmfl.methods import Method
from mmfl.papers.forecast.candidates import (
    BiasOf,
    ChangingBias,
    Impatient,
    OwnRatio,
    PlainResiduals,
    StepUnits,
)
from mmfl.papers.forecast.common_step import CommonStep
from mmfl.papers.forecast.forecasts import AgedForecast, DirectedForecast
from mmfl.papers.forecast.newcomers import BetweenUnits, MeanAndStepUnits, MeanForNewcomers, NewcomersFirst
from mmfl.papers.forecast.sampling import Capped, DataShare, LastLoss, Tempered


@dataclass(frozen=True)
class Variant:
    """A variant: what is different from `forecast`, and the rules that make it."""

    text: str
    allocation: Callable[[], AllocationRule]
    aggregation: Callable[[], AggregationRule]
    candidate: bool = False


def _expected(floor: float = 0.1, equal_tasks: bool = True) -> Callable[[], AllocationRule]:
    return lambda: ExpectedResidualVariance(floor, equal_tasks=equal_tasks)


def _bias(bias: float) -> Callable[[], AggregationRule]:
    return lambda: Forecast(bias)


def _where_fresh(most: float) -> BiasOf:
    """Less the older the last update is, and none at a first visit."""
    return lambda ratio, seen, t: most * (1 - ratio)


def _once_seen(bias: float) -> BiasOf:
    """None at a client's first visit."""
    return lambda ratio, seen, t: np.where(seen, bias, 0.0)


def _at_random() -> AllocationRule:
    """Drawn as in `forecast`, so that the probabilities alone are different."""
    return RandomProcessors("systematic")


_PLAIN = _expected()
_BY_LENGTH = _expected(equal_tasks=False)

VARIANTS: dict[str, Variant] = {
    "last-loss": Variant("sampled by the last training loss; z = beta(age) h; no SAG share", LastLoss, AgedForecast),
    "data-share": Variant("sampled by share of the data; z = beta(age) h; no SAG share", DataShare, AgedForecast),
    "residual": Variant(
        "sampled by expected residual, tasks not equalised; z = beta(age) h; no SAG share", _BY_LENGTH, AgedForecast
    ),
    "whole-forecast": Variant("tasks not equalised; no SAG share", _BY_LENGTH, _bias(0.0)),
    "no-bias": Variant("no SAG share", _PLAIN, _bias(0.0)),
    "unequal-tasks": Variant("tasks not equalised", _BY_LENGTH, _bias(0.3)),
    "bias-0.2": Variant("SAG share 0.2", _PLAIN, _bias(0.2)),
    "bias-0.6": Variant("SAG share 0.6", _PLAIN, _bias(0.6)),
    "bias-1": Variant("SAG share 1", _PLAIN, _bias(1.0)),
    "cap-3": Variant("importance at most 3 times its mean", lambda: Capped(3.0), _bias(0.3)),
    "cap-3-no-bias": Variant("importance at most 3 times its mean; no SAG share", lambda: Capped(3.0), _bias(0.0)),
    "floor-0.3": Variant("importance at least 0.3 times its mean", _expected(0.3), _bias(0.3)),
    "age-curve-bias-0.5": Variant(
        "z = beta(age) h; SAG share 0.5", _PLAIN, lambda: AgedForecast(0.5)
    ),
    "last-step": Variant("z = a(age) last step + b(age) h", _PLAIN, lambda: DirectedForecast(0.3)),
    "last-step-no-bias": Variant(
        "z = a(age) last step + b(age) h; no SAG share", _PLAIN, lambda: DirectedForecast(0.0)
    ),
    "plain-residual": Variant("residuals expected of G - h, not of G - b h", _PLAIN, lambda: PlainResiduals(0.3)),
    "sampled-at-random": Variant("every processor with the same probability", _at_random, _bias(0.3)),
    "step-units": Variant("residuals in units of the task's step", _BY_LENGTH, lambda: StepUnits(0.3), True),
    "bias-where-fresh": Variant(
        "SAG share 0.5 (1 - rho(age)^2)", _PLAIN, lambda: ChangingBias(_where_fresh(0.5)), True
    ),
    "bias-where-fresh-1": Variant("SAG share 1 - rho(age)^2", _PLAIN, lambda: ChangingBias(_where_fresh(1.0)), True),
    "step-units-where-fresh": Variant(
        "residuals in units of the task's step; SAG share 0.5 (1 - rho(age)^2)", _BY_LENGTH,
        lambda: ChangingBias(_where_fresh(0.5), step_units=True), True,
    ),
    "bias-where-old": Variant(
        "SAG share 0.5 rho(age)^2", _PLAIN, lambda: ChangingBias(lambda ratio, seen, t: 0.5 * ratio), True
    ),
    "bias-once-seen": Variant(
        "SAG share 0.3 only for clients seen before", _PLAIN,
        lambda: ChangingBias(_once_seen(0.3)), True,
    ),
    "bias-once-seen-0.5": Variant(
        "SAG share 0.5 only for clients seen before", _PLAIN, lambda: ChangingBias(_once_seen(0.5)), True
    ),
    "step-units-once-seen": Variant(
        "residuals in units of the task's step; SAG share 0.3 only for clients seen before", _BY_LENGTH,
        lambda: ChangingBias(_once_seen(0.3), step_units=True), True,
    ),
    "bias-first-visit": Variant(
        "SAG share 1 at a client's first visit", _PLAIN,
        lambda: ChangingBias(lambda ratio, seen, t: np.where(seen, 0.3, 1.0)), True,
    ),
    "bias-falls": Variant(
        "SAG share 0.6 / (1 + t / 50)", _PLAIN, lambda: ChangingBias(lambda ratio, seen, t: 0.6 / (1 + t / 50)), True
    ),
    "bias-grows": Variant(
        "SAG share 0.6 (1 - 1 / (1 + t / 50))", _PLAIN,
        lambda: ChangingBias(lambda ratio, seen, t: 0.6 - 0.6 / (1 + t / 50)), True,
    ),
    "own-ratio": Variant("residual times a factor of the client's own", _PLAIN, lambda: OwnRatio(Forecast(0.3)), True),
    "own-ratio-step-units-where-fresh": Variant(
        "a factor of each client's own on the residual, in units of the task's step; SAG share 0.5 (1 - rho(age)^2)",
        _BY_LENGTH, lambda: OwnRatio(ChangingBias(_where_fresh(0.5), step_units=True)), True,
    ),
    "mean-for-newcomers": Variant(
        "z = mean of the others' last updates for clients never seen", _PLAIN, lambda: MeanForNewcomers(0.3, 0.3), True
    ),
    "mean-for-newcomers-no-bias": Variant(
        "z = mean of the others' last updates for clients never seen; no SAG share", _PLAIN,
        lambda: MeanForNewcomers(0.0), True,
    ),
    "mean-once-seen": Variant(
        "as mean-for-newcomers; SAG share 0.3 only for clients seen before", _PLAIN, lambda: MeanForNewcomers(0.3), True
    ),
    "mean-once-seen-step-units": Variant(
        "as mean-once-seen; residuals in units of the task's step", _BY_LENGTH, lambda: MeanAndStepUnits(0.3), True
    ),
    "mean-once-seen-between-units": Variant(
        "as mean-once-seen; residuals in units between both", _BY_LENGTH, lambda: BetweenUnits(0.3), True
    ),
    "newcomers-first": Variant(
        "as mean-once-seen; twice the residual expected of clients never seen", _PLAIN, lambda: NewcomersFirst(0.3),
        True,
    ),
    "common-step": Variant(
        "z = mean step + deviation of the last update; SAG share 0.5, none at first visits", _PLAIN,
        lambda: CommonStep(0.5), True,
    ),
    "common-step-0.7": Variant("as common-step; SAG share 0.7", _PLAIN, lambda: CommonStep(0.7), True),
    "common-step-0.9": Variant("as common-step; SAG share 0.9", _PLAIN, lambda: CommonStep(0.9), True),
    "common-step-no-bias": Variant("as common-step; no SAG share", _PLAIN, lambda: CommonStep(0.0), True),
    "common-step-slow": Variant(
        "as common-step; SAG share 0.7, mean step at rate 0.05", _PLAIN, lambda: CommonStep(0.7, 0.05), True
    ),
    "common-step-units": Variant(
        "as common-step; SAG share 0.7, residuals in units of the task's step", _BY_LENGTH,
        lambda: CommonStep(0.7, units="step"), True,
    ),
    "common-step-between-units": Variant(
        "as common-step; residuals in units between both", _BY_LENGTH, lambda: CommonStep(units="between"), True
    ),
    "common-step-at-random": Variant(
        "as common-step; SAG share 0.7, every processor with the same probability", _at_random,
        lambda: CommonStep(0.7), True,
    ),
    "impatient": Variant("residual times (1 + age / 10)^0.5", _PLAIN, lambda: Impatient(0.5), True),
    "impatient-more": Variant("residual times 1 + age / 10", _PLAIN, lambda: Impatient(1.0), True),
    "tempered": Variant("square root of the importance", lambda: Tempered(0.5), _bias(0.3), True),
    "steady": Variant(
        "importance 0.3 to 3 times its mean; SAG share 0.5", lambda: Capped(3.0, floor=0.3), _bias(0.5), True
    ),
}  # fmt: skip


def method(name: str) -> Method:
    """The method of a variant."""
    variant = VARIANTS[name]
    return Method(name, variant.allocation(), variant.aggregation())
