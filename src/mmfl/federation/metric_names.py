"""Reads the metrics of a task: functions, objects, names and tables with options, each under a name of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from mmfl.errors import UserError, at_place, check_name
from mmfl.federation.metric_kinds import Mean, Metric, TorchMetric
from mmfl.federation.metrics import METRICS
from mmfl.federation.objectives import Objective
from mmfl.record import CLIENT_PREFIX, TaskRecord
from mmfl.registry import Spec, bind, call

MetricSpec = Objective | Metric | Spec
"""A metric, or what names one: `"auc"`, or `{"name": "top_k", "k": 3}`."""
_UNNAMED = "metric"  # what a main metric without a name is called
_RESERVED = {each.name for each in fields(TaskRecord)}


def read_metrics(where: str, main: Any, others: Any) -> dict[str, Metric]:
    """All metrics by name, the main one first; `others` are a list, or by name. Refuses names that are taken."""
    if isinstance(others, str) or not isinstance(others, Mapping | Sequence):
        raise UserError(f"{where}: metrics is {others!r}; expected a list of metrics, or a table of them by name.")
    with at_place(where):
        name, metric = read_metric(main)
    metrics = {name or _UNNAMED: metric}
    for key, spec in others.items() if isinstance(others, Mapping) else [(None, spec) for spec in others]:
        with at_place(where):
            name, metric = read_metric(spec)
        name = name if key is None else key
        if not isinstance(name, str) or not name:
            raise UserError(f'{where}: a metric has no name; expected one, as in metrics={{"my_score": ...}}.')
        check_name(f"{where}: metric", name)
        if name in metrics:
            raise UserError(f"{where}: two metrics are named '{name}'; expected another name for one of them.")
        if name in _RESERVED or name.startswith(CLIENT_PREFIX):
            raise UserError(f"{where}: metric '{name}': the name is reserved for a column of the results.")
        metrics[name] = metric
    return metrics


def read_metric(spec: Any) -> tuple[str, Metric]:
    """A metric's own name, empty for one without such as a lambda, and the metric; of a function, its mean.

    >>> read_metric({"name": "top_k", "k": 3})[0]
    'top_3'
    >>> read_metric("macro-f1")
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: unknown metric 'macro-f1': did you mean 'macro_f1'?
    """
    if isinstance(spec, str | Mapping):
        spec = bind("metric", spec, METRICS)
    elif isinstance(spec, type):
        spec = call("metric", spec.__name__, spec, {})
    if not isinstance(spec, Metric) and all(callable(getattr(spec, m, None)) for m in ("update", "compute", "reset")):
        spec = TorchMetric(spec)
    if not isinstance(spec, Metric) and not callable(spec):
        raise UserError(f"metric is {spec!r}; expected a name, a function of (outputs, targets), or a metric object.")
    name = getattr(spec, "name", None) or getattr(getattr(spec, "func", spec), "__name__", None)
    name = name if isinstance(name, str) and name.isprintable() and not name.startswith("<") else ""
    return name, spec if isinstance(spec, Metric) else Mean(spec)
