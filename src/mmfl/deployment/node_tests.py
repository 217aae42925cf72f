"""Tests by nodes: what a node tells of its test examples, checked, and how the tests of all nodes add up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.deployment.payload import InvalidPayloadError
from mmfl.engine import Evaluation
from mmfl.engine.evaluation import ClientValues
from mmfl.federation.task import Task

MAX_VALUE = 1e30
"""A larger loss or metric cannot be right."""


@dataclass(frozen=True, eq=False)
class NodeEvaluation:
    """A node's test of a task: on how many examples, their mean loss, and the summed statistics of each metric."""

    examples: int
    loss: float
    statistics: Sequence[NDArray[np.float64]]

    @classmethod
    def read(cls, examples: int, loss: float, statistics: list[Any]) -> "NodeEvaluation":
        """Refuses what cannot be right."""
        if examples <= 0 or not abs(loss) <= MAX_VALUE:
            raise InvalidPayloadError(f"{examples} examples with loss {loss}")
        if not all(isinstance(each, list) and all(map(_is_plausible, each)) for each in statistics):
            raise InvalidPayloadError("the statistics of a metric are not numbers")
        return cls(examples, float(loss), [np.array(each, dtype=np.float64) for each in statistics])

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many numbers each metric has."""
        return tuple(map(len, self.statistics))

    def fits(self, task: Task) -> bool:
        """Whether the metrics of a task can be computed from it."""
        try:
            Evaluation.of(task, self.loss, self.statistics, None)
        except (ValueError, RuntimeError, IndexError, KeyError):
            return False
        return True


def keep_alike(task: Task, tests: Sequence[NodeEvaluation]) -> list[NodeEvaluation]:
    """The tests from which the metrics can be computed, and whose statistics have the lengths of most nodes'."""
    lengths = [test.lengths for test in tests if test.fits(task)]
    usual = Counter(lengths).most_common(1)[0][0] if lengths else None
    return [test for test in tests if test.lengths == usual]


def add_up(task: Task, tests: Sequence[NodeEvaluation], by_client: Mapping[int, tuple[int, float]]) -> Evaluation:
    """The result of all tests together, with the examples and the metric of each client; nan where there are none."""
    if not tests:
        return Evaluation(float("nan"), float("nan"))
    loss = float(np.average([test.loss for test in tests], weights=[test.examples for test in tests]))
    sums = [np.sum(parts, axis=0) for parts in zip(*(test.statistics for test in tests), strict=True)]
    client = np.array(sorted(by_client), dtype=np.int64)
    examples, values = np.array([by_client[i] for i in client.tolist()]).reshape(-1, 2).T
    clients = ClientValues(client, examples.astype(np.int64), values) if by_client else None
    return Evaluation.of(task, loss, sums, clients)


def _is_plausible(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_VALUE
