"""The results of an experiment: runs of methods and seeds side by side, and runs read back from their directory."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mmfl.checks import check
from mmfl.errors import UserError, nearest
from mmfl.record import LastTest, RoundRecord
from mmfl.runs.directory import Pair, RunDirectory
from mmfl.runs.layout import REPORT_PAGE
from mmfl.runs.metric_tables import final_metrics, final_spread
from mmfl.runs.run import Run

__all__ = ["Comparison", "Run", "from_records", "load"]


class Comparison:
    """Runs of several methods and seeds on the same tasks."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = list(runs)

    @property
    def methods(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(run.method for run in self.runs))

    @property
    def tasks(self) -> list[str]:
        """The tasks, in order."""
        return self.runs[0].tasks

    def __getitem__(self, key: str | tuple[str, int]) -> Run:
        """The run of a method, `comparison["random"]`; with several seeds, `comparison["random", 3]`."""
        expected = 'a method, or a method and a seed, such as ["random", 0]'
        check(isinstance(key, str | tuple), "comparison", "the key", key, expected)
        method, *seed = (key,) if isinstance(key, str) else key
        runs = self.of(method)
        found = [run for run in runs if not seed or run.seed == seed[0]]
        if len(found) != 1:
            seeds = ", ".join(str(run.seed) for run in runs)
            expected = f'["{method}", {runs[0].seed}]'
            raise UserError(f"method '{method}' has runs of the seeds {seeds}; expected one, such as {expected}.")
        return found[0]

    def of(self, method: str) -> list[Run]:
        """The runs of one method, a seed each."""
        if method not in self.methods:
            raise UserError(f"no runs of method '{method}': {nearest(method, self.methods)}")
        return [run for run in self.runs if run.method == method]

    def full_of(self, method: str) -> str | None:
        """The name of full participation in a method's experiment; None where it was not run."""
        full = self.of(method)[0].full
        return full if full in self.methods else None

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def table(self, window: int | None = None) -> pd.DataFrame:
        """One row per method: final metric of each task, mean and worst task, their spread over seeds, and costs.

        `relative` is the mean over tasks divided by that of full participation in the same experiment, seed by seed,
        where that was run.
        """
        finals, rows = self.finals(window), {}
        for method in self.methods:
            of_method, full = pd.DataFrame(finals.loc[method]), self.full_of(method)
            ratios = (of_method["mean"] / finals.loc[full]["mean"]).replace([np.inf, -np.inf], np.nan) if full else None
            costs = pd.concat([run.costs for run in self.of(method)]).mean()
            rows[method] = {
                **of_method.mean().to_dict(),
                "spread": float(of_method["mean"].std(ddof=1)) if len(of_method) > 1 else np.nan,
                "relative": float(ratios.mean()) if ratios is not None else np.nan,
                "trainings": float(costs["trainings"]),
                "forward_passes": float(costs["forward_passes"]),
                "megabytes": float(costs["bytes_up"] + costs["bytes_down"]) / 1e6,
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")

    def finals(self, window: int | None = None) -> pd.DataFrame:
        """The final metrics of every run, by method and seed: those of tasks, and their mean and worst."""
        rows = {(run.method, run.seed): run.final(window) for run in self.runs}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["method", "seed"])

    def metrics(self, window: int | None = None) -> pd.DataFrame:
        """One row per method: final values of all metrics by task and name, averaged over seeds."""
        finals = [final_metrics(run.records, window or run.window).rename(run.method) for run in self.runs]
        return pd.DataFrame(finals).groupby(level=0, sort=False).mean().rename_axis("method")

    def clients(self, window: int | None = None) -> pd.DataFrame:
        """One row per method and task: how the final metric is distributed over clients, averaged over seeds; `mean`,
        `worst_tenth`, `deviation`, `fairness` and so on. No rows where test examples belong to no clients."""
        spreads = {(run.method, run.seed): final_spread(run.records, self.tasks, window or run.window) for run in self}
        table = pd.concat(spreads, names=["method", "seed", "task"])
        return table.groupby(["method", "task"], sort=False).mean()

    def plot(self, path: str | Path) -> None:
        """Draws accuracy, participation and step size on one page."""
        from matplotlib import pyplot

        from mmfl.report.figures import main
        from mmfl.report.plots import draw

        overview, *_ = main(self)
        picture = draw(overview)
        picture.savefig(path)
        pyplot.close(picture)

    def report(self, path: str | Path = REPORT_PAGE) -> None:
        """Writes everything there is to see as one HTML file, which needs no network. Needs plotly."""
        from mmfl.report import page

        page.write(self, Path(path))

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.methods)}; {len(self.runs)} runs)"

    def _repr_html_(self) -> str:
        from mmfl.report import notebook

        return notebook.comparison(self)


def load(path: str | Path) -> Comparison:
    """The runs in a directory, from their records.

    >>> load("runs/nothing-here")
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: 'runs/nothing-here' is not a run directory: it has no config.toml.
    """
    directory = RunDirectory.open(path)
    records = directory.records()
    if not records:
        raise UserError(f"run '{path}' has no finished round yet.")
    return from_records(records, directory.last_tests())


def from_records(
    records: Sequence[RoundRecord], last_tests: Mapping[Pair, Mapping[str, LastTest]] | None = None
) -> Comparison:
    """The runs that records are of, by method and seed, with what their last tests found."""
    tasks = list(dict.fromkeys(name for record in records for name in record.tasks))
    by_replica: dict[Pair, list[RoundRecord]] = {}
    for record in records:
        by_replica.setdefault((record.method, record.seed), []).append(record)
    tested = last_tests or {}
    return Comparison(
        [Run(known, *pair, tasks, known[0].clients, tested=tested.get(pair, {})) for pair, known in by_replica.items()]
    )
