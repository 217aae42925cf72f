"""How updates become the next global weights: aggregation rules, one family per file.

A rule sees the global weights of one task, the updates that came back and the round's view; never a client's data.
"""

from collections.abc import Callable

from mmfl.aggregation.asynchronous import FedAsync, FedBuff, StalenessWeighted
from mmfl.aggregation.average import Average
from mmfl.aggregation.base import AggregationRule, AggregationWrapper
from mmfl.aggregation.clipping import NormClipping
from mmfl.aggregation.forecast import Forecast
from mmfl.aggregation.robust import GeometricMedian, Krum, Median, MultiKrum, TrimmedMean
from mmfl.aggregation.server import ServerAdam, ServerMomentum, ServerOptimiser
from mmfl.aggregation.stale import MIFA, FedStale, FedVARP, StaleVR, StaleVRE
from mmfl.aggregation.unbiased import SelfNormalised, Unbiased, inverse_probability

AGGREGATIONS: dict[str, Callable[..., AggregationRule]] = {
    "average": Average,
    "unbiased": Unbiased,
    "self-normalised": SelfNormalised,
    "fedvarp": FedVARP,
    "fedstale": FedStale,
    "mifa": MIFA,
    "stalevr": StaleVR,
    "stalevre": StaleVRE,
    "forecast": Forecast,
    "momentum": ServerMomentum,
    "adam": ServerAdam,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "geometric-median": GeometricMedian,
    "norm-clipping": NormClipping,
    "fedbuff": FedBuff,
    "fedasync": FedAsync,
    "staleness-weighted": StalenessWeighted,
}

__all__ = [
    "AGGREGATIONS",
    "MIFA",
    "AggregationRule",
    "AggregationWrapper",
    "Average",
    "FedAsync",
    "FedBuff",
    "FedStale",
    "FedVARP",
    "Forecast",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "NormClipping",
    "SelfNormalised",
    "ServerAdam",
    "ServerMomentum",
    "ServerOptimiser",
    "StaleVR",
    "StaleVRE",
    "StalenessWeighted",
    "TrimmedMean",
    "Unbiased",
    "inverse_probability",
]
