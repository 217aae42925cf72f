"""Run: the records, weights and tables of one method with one seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor, nn

from mmfl.data.dataset import ELSEWHERE, as_inputs
from mmfl.data.structure import rows
from mmfl.engine.layout import Layout
from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.privacy import PrivacySpent
from mmfl.record import LastTest, RoundRecord
from mmfl.runs.exporting import export
from mmfl.runs.layout import REPORT_PAGE
from mmfl.runs.metric_tables import all_metrics, client_values, table_of
from mmfl.runs.times import time_to, timings
from mmfl.training import AveragedWeights, BestWeights

Vectors = tuple[Sequence[Tensor], Sequence[Tensor | None] | None]
"""Weights and statistics of batch norm, by task."""


@dataclass(eq=False, repr=False)
class Run:
    """One method with one seed: its record of every round and, after training, its weights.

    `best_weights` are those of each task's best tested round, where they were kept (`keep_best=True`), and
    `average_weights` those averaged over rounds, where they were (`average=0.1`).
    `full` is the name of full participation in the same experiment, to which the run is compared. `tested` has what
    the last test of each task found besides single numbers.
    """

    records: list[RoundRecord]
    method: str
    seed: int
    tasks: list[str]
    clients: int
    federation: Federation | None = None
    weights: Sequence[Tensor] | None = None
    batch_norm: Sequence[Tensor | None] | None = None
    best_weights: BestWeights | None = None
    average_weights: AveragedWeights | None = None
    privacy_spent: PrivacySpent | None = None
    full: str = "full"
    tested: Mapping[str, LastTest] = field(default_factory=dict)

    def frame(self, quantity: str) -> pd.DataFrame:
        """A recorded quantity, rounds x tasks; `nan` where it was not measured."""
        known = {name for record in self.records for task in record.tasks.values() for name in task.numbers()}
        if self.records and quantity not in known:
            raise UserError(f"run: no quantity '{quantity}' was recorded: {nearest(quantity, known)}")
        rows = {r.round: {name: task.value(quantity) for name, task in r.tasks.items()} for r in self.records}
        return pd.DataFrame.from_dict(rows, orient="index", columns=self.tasks, dtype=float).rename_axis("round")

    @property
    def accuracy(self) -> pd.DataFrame:
        """The tasks' metric on the test examples, rounds x tasks, of the rounds that were evaluated."""
        return self.frame("metric").dropna(how="all")

    @property
    def average(self) -> pd.DataFrame:
        """As `accuracy`, of the weights averaged over rounds; no rows where they are not averaged (`average=0.1`)."""
        rows = {r.round: {name: task.average_metric for name, task in r.tasks.items()} for r in self.records}
        table = pd.DataFrame.from_dict(rows, orient="index", columns=self.tasks, dtype=float).rename_axis("round")
        return table.dropna(how="all")

    @property
    def loss(self) -> pd.DataFrame:
        """Test loss, rounds x tasks, of the rounds that were evaluated."""
        return self.frame("loss").dropna(how="all")

    @property
    def metrics(self) -> pd.DataFrame:
        """All metrics of the rounds that were evaluated: `round`, `task`, `metric` (its name, the main one first) and
        `value`, which is `nan` where the metric is undefined, such as AUC with a single class."""
        return all_metrics(self.records)

    def client_metric(self, task: str) -> pd.DataFrame:
        """The main metric of each client, and the number of its test examples, in the last evaluated round.

        Only for tasks whose test examples belong to clients. `frame("client_worst_tenth")` and the like say how the
        metric is distributed over clients in every evaluated round.
        """
        return client_values(task, self._last_test(task))

    def confusion(self, task: str, metric: str = "confusion") -> pd.DataFrame:
        """The confusion matrix of a task in the last evaluated round, targets x predictions; or another table."""
        return table_of(task, metric, self._last_test(task))

    def _last_test(self, task: str) -> LastTest:
        self._check_task(task)
        return self.tested.get(task, LastTest(0))

    def _check_task(self, task: str) -> None:
        if task not in self.tasks:
            raise UserError(f"unknown task '{task}': {nearest(task, self.tasks)}")

    @property
    def step_size(self) -> pd.DataFrame:
        """||H||_1, the sum of the aggregation's inverse-probability weights, rounds x tasks."""
        return self.frame("step_size")

    @property
    def summary(self) -> pd.DataFrame:
        """Mean and worst task of every evaluated round; where weights are averaged, `average_mean` is their mean."""
        columns = ["mean", "worst", *(["average_mean"] if self._is_averaged else [])]
        rows = {r.round: {name: getattr(r, name) for name in columns} for r in self.records if r.mean is not None}
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=float).rename_axis("round")

    @property
    def _is_averaged(self) -> bool:
        return any(record.average_mean is not None for record in self.records)

    @property
    def costs(self) -> pd.DataFrame:
        """Trainings, forward passes, bytes and stored memory of every round."""
        return self._by_round([asdict(record.cost) for record in self.records])

    @property
    def faults(self) -> pd.DataFrame:
        """What went wrong with nodes, rounds x kinds of event; no columns where nothing did, as in a simulation."""
        return self._by_round([record.faults for record in self.records]).fillna(0).astype(int)

    def _by_round(self, rows: Sequence[Mapping[str, float]]) -> pd.DataFrame:
        return pd.DataFrame(rows, index=[record.round for record in self.records]).rename_axis("round")

    @property
    def times(self) -> pd.DataFrame:
        """Rounds on the clock, where clients have devices: `begin`, `end`, `seconds`, the devices' `utilisation`, and
        the device-seconds that were wasted, by cause."""
        return timings(self.records)

    def time_to(self, target: float | Mapping[str, float]) -> pd.Series:
        """When each task first reached a target in a tested round, in seconds on the clock, and when `all` had; `nan`
        where one never did. A metric that is an error must come down to it; a mapping gives targets by task."""
        tasks = self.federation.tasks if self.federation is not None else ()
        lower = [task.name for task in tasks if task.main_metric.lower_is_better]
        return time_to(self.records, self.tasks, target, lower)

    @property
    def participation(self) -> pd.DataFrame:
        """How often each client trained each task, clients x tasks."""
        counts = np.zeros((self.clients, len(self.tasks)), dtype=np.int64)
        for s, task in enumerate(self.tasks):
            drawn = [record.drawn[task] for record in self.records if task in record.drawn]
            client = [number for clients, _ in drawn for number in clients]
            np.add.at(counts[:, s], client, [count for _, times in drawn for count in times])
        return pd.DataFrame(counts, columns=self.tasks)

    def final(self, window: int | None = None) -> pd.Series:
        """Metric of each task, and their mean and worst, averaged over the last `window` evaluated rounds.

        By default the last fifth of them, at most 20: single rounds are noisy.
        """
        return self.accuracy.join(self.summary).tail(window or self.window).mean()

    @property
    def window(self) -> int:
        """How many of the last evaluated rounds the final metric is the mean of: a fifth of them, at most 20."""
        return max(1, min(20, len(self.accuracy) // 5))

    @property
    def best(self) -> pd.DataFrame:
        """The best tested round of each task, and its metric there: columns `round` and `metric`, a row per task."""
        if self.federation is None:
            raise UserError("this run was loaded from its records alone, which do not say whether metrics are errors.")
        found = {}
        for task in self.federation.tasks:
            tested = self.accuracy[task.name].dropna()
            if len(tested):
                at = int(tested.argmin() if task.main_metric.lower_is_better else tested.argmax())
                found[task.name] = {"round": tested.index[at], "metric": tested.iloc[at]}
        return pd.DataFrame.from_dict(found, orient="index", columns=["round", "metric"]).rename_axis("task")

    def module(self, task: str, weights: str = "current") -> nn.Module:
        """The trained model of a task, ready to use: with its `current` weights, those of the last round, with the
        `best`, those of its best tested round, or with their `average` over rounds."""
        if self.federation is None or self.weights is None:
            raise UserError("this run was loaded from its records alone, without weights.")
        self._check_task(task)
        if weights not in WEIGHTS:
            raise UserError(f"unknown weights '{weights}': {nearest(str(weights), WEIGHTS)}")
        vectors, batch_norm = WEIGHTS[weights](self, task)
        s = self.tasks.index(task)
        module = self.federation.tasks[s].build(self.seed, s)
        statistics = batch_norm[s] if batch_norm else None
        layout = Layout(module, self.federation.tasks[s].batch_norm)
        if statistics is None and layout.shared < layout.length:
            raise UserError(
                f"task '{task}': its batch norm is on the nodes of the deployment, and so no whole model here."
            )
        values = layout.values(vectors[s].cpu(), None if statistics is None else statistics.cpu())
        module.load_state_dict(values, strict=False)
        return module.eval()

    def export(self, task: str, path: str | Path, weights: str = "current") -> None:
        """Writes the model of a task to a file: `.safetensors` and `.pt` hold its state dict, `.torchscript` and
        `.onnx` the model with its operations. `weights` are those of `module`."""
        module = self.module(task, weights)
        assert self.federation is not None
        data = self.federation.tasks[self.tasks.index(task)].data
        export(module, path, None if data is ELSEWHERE else as_inputs(rows(data.x_test, slice(4))))

    def plot(self, path: str | Path) -> None:
        """Draws accuracy, participation and step size on one page."""
        from mmfl.runs.results import Comparison

        Comparison([self]).plot(path)

    def report(self, path: str | Path = REPORT_PAGE) -> None:
        """Writes everything there is to see as one HTML file, which needs no network. Needs plotly."""
        from mmfl.runs.results import Comparison

        Comparison([self]).report(path)

    def __repr__(self) -> str:
        last = self.records[-1].round if self.records else 0
        return f"Run({self.method}, seed {self.seed}, {last} rounds)"

    def _repr_html_(self) -> str:
        from mmfl.report import notebook

        return notebook.run(self)


def _current(run: Run, task: str) -> Vectors:
    """Those of the last round."""
    assert run.weights is not None
    return run.weights, run.batch_norm


def _best(run: Run, task: str) -> Vectors:
    """Those of each task's best tested round, where they were kept."""
    if run.best_weights is None:
        raise UserError("the best weights were not kept; expected a run with keep_best=True.")
    if not run.best_weights.round[run.tasks.index(task)]:
        raise UserError(f"task '{task}' has no best round: in no test did it have a metric.")
    return run.best_weights.weights, run.best_weights.batch_norm


def _average(run: Run, task: str) -> Vectors:
    """Those averaged over rounds, where they were; batch norm that is the clients' own is not averaged."""
    average = run.average_weights
    if average is None:
        raise UserError("the weights were not averaged; expected a run with average=0.1, for example.")
    if not average.weights[run.tasks.index(task)].rounds:
        raise UserError(f"task '{task}' has no averaged weights: it has not arrived yet.")
    current = run.batch_norm or [None] * len(run.tasks)
    averaged = [average.statistics(s) for s in range(len(run.tasks))]
    statistics = [own if found is None else found for own, found in zip(current, averaged, strict=True)]
    return [each.value() for each in average.weights], statistics


WEIGHTS: dict[str, Callable[[Run, str], Vectors]] = {"current": _current, "best": _best, "average": _average}
"""The weights of a run that a model can have, by name."""
