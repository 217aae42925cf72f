"""Reads the metrics of a task: functions, objects, names and tables with options, each under a name of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from mmfl.errors import UserError, check_name
from mmfl.federation.metric_kinds import AdditiveMetric, CollectedMetric, Mean, Metric, TorchMetric
from mmfl.federation.metrics import METRICS
from mmfl.federation.objectives import Objective
from mmfl.record import CLIENT_PREFIX, TaskRecord
from mmfl.registry import Spec, bind, call, find, read_spec

MAIN = "metric"
"""What a main metric without a name of its own is called."""
MetricSpec = Objective | Metric | Spec
"""A metric, or what names one: `"auc"`, or `{"name": "top_k", "k": 3}`."""
_RESERVED = {each.name for each in fields(TaskRecord)}


def read_metric(spec: Any) -> Objective | Metric:
    """The metric that is meant.

    >>> read_metric({"name": "top_k", "k": 3})
    TopK(k=3)
    >>> read_metric("macro-f1")
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: unknown metric 'macro-f1': did you mean 'macro_f1'?
    """
    if isinstance(spec, str | Mapping):
        name, options = read_spec("metric", spec)
        found = find("metric", name, METRICS)
        spec = call("metric", name, found, options) if isinstance(found, type) else bind("metric", spec, METRICS)
    elif isinstance(spec, type):
        spec = call("metric", spec.__name__, spec, {})
    if isinstance(spec, AdditiveMetric | CollectedMetric):
        return spec
    if all(callable(getattr(spec, method, None)) for method in ("update", "compute", "reset")):
        return TorchMetric(spec)
    if not callable(spec):
        raise UserError(f"metric is {spec!r}; expected a name, a function of (outputs, targets), or a metric object.")
    function: Objective = spec
    return function


def read_measures(where: str, main: Any, others: Any) -> dict[str, Metric]:
    """All metrics by name, the main one first; `others` are a list, or by name. Refuses names that are taken."""
    if isinstance(others, str) or not isinstance(others, Mapping | Sequence):
        raise UserError(f"{where}: metrics is {others!r}; expected a list of metrics, or a table of them by name.")
    metric = read_metric(main)
    name = _name(metric) or MAIN
    measures = {name: _as_measure(name, metric)}
    for key, spec in others.items() if isinstance(others, Mapping) else [(None, spec) for spec in others]:
        metric = read_metric(spec)
        name = _name(metric) if key is None else key
        if not isinstance(name, str) or not name:
            raise UserError(f'{where}: a metric has no name; expected one, as in metrics={{"my_score": ...}}.')
        check_name(f"{where}: metric", name)
        if name in measures:
            raise UserError(f"{where}: two metrics are named '{name}'; expected another name for one of them.")
        if name in _RESERVED or name.startswith(CLIENT_PREFIX):
            raise UserError(f"{where}: metric '{name}': the name is reserved for a column of the results.")
        measures[name] = _as_measure(name, metric)
    return measures


def _as_measure(name: str, metric: Objective | Metric) -> Metric:
    """The metric, or the mean of a function."""
    return metric if isinstance(metric, AdditiveMetric | CollectedMetric) else Mean(metric, name)


def _name(metric: Objective | Metric) -> str:
    """The name of a metric or function; empty for one without, such as a lambda."""
    given = getattr(metric, "name", None) or getattr(getattr(metric, "func", metric), "__name__", None)
    return given if isinstance(given, str) and given.isprintable() and not given.startswith("<") else ""
