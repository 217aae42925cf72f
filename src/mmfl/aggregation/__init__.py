"""How updates become the next global weights: aggregation rules, one family a file.

A rule sees the global weights of one task, the updates that came back and the round's view; never a client's data.
"""

from collections.abc import Callable

from mmfl.aggregation.average import Average
from mmfl.aggregation.base import AggregationRule
from mmfl.aggregation.unbiased import Unbiased, inverse_probability

AGGREGATIONS: dict[str, Callable[..., AggregationRule]] = {"average": Average, "unbiased": Unbiased}

__all__ = ["AGGREGATIONS", "AggregationRule", "Average", "Unbiased", "inverse_probability"]
