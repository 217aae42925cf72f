"""Replies: what nodes answer, checked before any of it is used, and how the tests of all nodes add up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.deployment.payload import InvalidPayloadError, Pair, Payload
from mmfl.engine import Evaluation, Training
from mmfl.engine.evaluation import ClientValues
from mmfl.federation.task import Task
from mmfl.updates import Trained
from mmfl.updates.world import SINGLE_PROCESS

_MAX_VALUE = 1e30  # a larger loss or metric cannot be right
_ROUNDING = 1e-3
_ANSWERS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    # part of a request: field of the answer, what it holds, and its columns after task and client
    "losses": ("losses", "loss", (float,)),
    "train": ("trained", "training", (float, int, float, float | None)),
    "collect": ("collected", "update", ()),
}


@dataclass(frozen=True, eq=False)
class TrainingReport:
    """One client's training as its node reports it.

    `inner_product` is that with the client's last update. `update` is None where the node keeps it until it is asked;
    with it come the client's statistics of batch norm, where they are shared.
    """

    client: int
    loss: float
    steps: int
    norm: float
    inner_product: float | None
    update: Tensor | None = None
    batch_norm: Tensor | None = None

    def check(
        self, length: int, max_norm: float, last_update: Tensor | None, wanted: bool, is_variance: Tensor
    ) -> "TrainingReport":
        """The report, with norm and inner product of the update if that came; refuses what cannot be right.

        `is_variance` marks the variances among the statistics of batch norm that are expected.
        """
        update, norm, product = self.update, self.norm, self.inner_product
        _require(abs(self.loss) <= _MAX_VALUE, f"the loss is {self.loss}")
        _require(self.steps >= 1, f"{self.steps} steps")
        if update is not None:
            kind = f"{str(update.dtype).removeprefix('torch.')} {list(update.shape)}"
            _require(update.shape == (length,) and update.dtype == torch.float32, f"the update is {kind}")
            if len(is_variance):
                statistics = torch.empty(0) if self.batch_norm is None else self.batch_norm
                right = statistics.shape == is_variance.shape and statistics.dtype == torch.float32
                _require(right, f"there are {len(statistics)} statistics of batch norm, not {len(is_variance)}")
                right = bool((torch.isfinite(statistics) & ((statistics >= 0) | ~is_variance)).all())
                _require(right, "a statistic of batch norm is not finite, or a variance is negative")
            norm = float(update.norm())
            product = None if last_update is None else float((update * last_update).sum())
        _require(np.isfinite(norm) and norm >= 0, "the update is not finite")
        _require(norm <= max_norm, f"the update has length {norm:.3g}, over {max_norm:.3g}")
        if update is None and last_update is not None:
            bound = norm * float(last_update.norm())  # by Cauchy and Schwarz
            valid = product is not None and abs(product) <= bound * (1 + _ROUNDING) + _ROUNDING
            _require(valid, f"the product with the last update is {product}, over {bound:.3g}")
        _require(update is not None or not wanted, "the update did not come")
        return replace(self, norm=norm, inner_product=product)


def _require(valid: bool | np.bool_, problem: str) -> None:
    if not valid:
        raise InvalidPayloadError(problem)


@dataclass(frozen=True, eq=False)
class RemoteTrained(Trained):
    """Updates that nodes trained, some of which they may keep until they are asked; `reports` has one per client."""

    reports: Sequence[TrainingReport] = field(kw_only=True)
    training: Training = field(kw_only=True)

    @classmethod
    def of(cls, training: Training, reports: Sequence[TrainingReport]) -> "RemoteTrained":
        """Puts the reports of one training into arrays."""
        arrived = np.array([n for n, report in enumerate(reports) if report.update is not None], dtype=np.int64)
        updates = [report.update for report in reports if report.update is not None]
        statistics = [report.batch_norm for report in reports if report.batch_norm is not None]
        inner_products = np.array([report.inner_product or 0.0 for report in reports], dtype=np.float64)
        return cls(
            np.array([report.client for report in reports], dtype=np.int64),
            torch.stack(updates) if updates else torch.empty(0, len(training.weights)),
            np.array([report.loss for report in reports], dtype=np.float64),
            np.array([report.steps for report in reports], dtype=np.int64),
            None if len(arrived) == len(reports) else arrived,
            SINGLE_PROCESS,
            np.array([report.norm for report in reports], dtype=np.float64),
            None if training.remembered is None else inner_products,
            torch.stack(statistics) if statistics else None,
            reports=tuple(reports),
            training=training,
        )


@dataclass(frozen=True, eq=False)
class NodeEvaluation:
    """A node's test of a task: on how many examples, their mean loss, and the summed statistics of each metric."""

    examples: int
    loss: float
    statistics: Sequence[NDArray[np.float64]]

    @classmethod
    def read(cls, examples: int, loss: float, statistics: list[Any]) -> "NodeEvaluation":
        """Refuses what cannot be right."""
        if examples <= 0 or not abs(loss) <= _MAX_VALUE:
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
    return type(value) in (int, float) and abs(value) <= _MAX_VALUE


class Replies:
    """The replies of all nodes in one exchange, by task and client; `missing` lists what is absent or invalid."""

    def __init__(self) -> None:
        self.losses: dict[str, dict[int, float]] = {}
        self.trained: dict[Pair, TrainingReport] = {}
        self.tests: dict[str, list[NodeEvaluation]] = {}
        self.client_tests: dict[str, dict[int, tuple[int, float]]] = {}
        self.vectors: dict[str, Tensor] = {}
        self.missing: list[tuple[int | None, str]] = []

    def read(self, asked: Mapping[str, Any], payload: Payload) -> None:
        """Reads a node's reply. One that answers what was not asked, or anything twice, is refused as a whole."""
        pairs = {part: {(row[0], row[1]) for row in asked.get(part, [])} for part in _ANSWERS}
        answers = {part: payload.table(key, (str, int), kinds) for part, (key, _, kinds) in _ANSWERS.items()}
        tests = payload.table("tests", (str,), (int, float, list))
        client_tests = payload.table("client_tests", (str, int), (int, float | None))
        for part, found in answers.items():
            for name, client in found:
                if (name, client) not in pairs[part]:
                    raise InvalidPayloadError(f"answers for task '{name}' and client {client}, which was not asked")
        senders = pairs["train"] | pairs["collect"]
        expected = {f"{kind}.{name}.{client}" for kind in ("update", "batch_norm") for name, client in senders}
        if stray := set(payload.vectors) - expected:
            raise InvalidPayloadError(f"has a vector '{sorted(stray)[0]}', which was not asked for")
        for (name, client), (loss,) in answers["losses"].items():
            if abs(loss) <= _MAX_VALUE:
                self.losses.setdefault(name, {})[client] = float(loss)
            else:
                self.missing.append((client, f"task '{name}': the loss is {loss}"))
        for part, (_, what, _) in _ANSWERS.items():
            for name, client in sorted(pairs[part] - set(answers[part])):
                self.missing.append((client, f"task '{name}': no {what} in the answer"))
        self.vectors |= payload.vectors
        for pair, (loss, steps, norm, inner_product) in answers["train"].items():
            report = TrainingReport(pair[1], float(loss), steps, float(norm), inner_product)
            self.trained[pair] = self.with_vectors(report, pair[0])
        for (name,), row in tests.items():
            try:
                _require([name] in asked.get("test", []), "was not asked for")
                self.tests.setdefault(name, []).append(NodeEvaluation.read(*row))
            except InvalidPayloadError as error:
                self.missing.append((None, f"task '{name}': a test: {error}"))
        for (name, client), (count, value) in client_tests.items():
            if [name] in asked.get("test", []) and count > 0 and (value is None or abs(value) <= _MAX_VALUE):
                self.client_tests.setdefault(name, {})[client] = (count, np.nan if value is None else float(value))
            else:
                self.missing.append((client, f"task '{name}': a test of {count} examples with metric {value}"))

    def with_vectors(self, report: TrainingReport, task: str) -> TrainingReport:
        """A report with the update and the statistics of batch norm that came for it."""
        update, batch_norm = (self.vectors.get(f"{kind}.{task}.{report.client}") for kind in ("update", "batch_norm"))
        return replace(report, update=update, batch_norm=batch_norm)
