"""Runs: what happened, as data frames and pictures; and the directory in which a run lives."""

import json
import logging
import os
import platform
import shutil
import stat
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
import torch
from torch import Tensor, nn

import mmfl
from mmfl.engine.layout import Layout
from mmfl.errors import UserError, check_name, nearest, shorten
from mmfl.federation import Federation
from mmfl.runs.checkpoint import write_atomically
from mmfl.runs.listing import read_settings
from mmfl.runs.lock import hold, is_lock
from mmfl.runs.records import METRICS, Records
from mmfl.runs.records import read as read_records
from mmfl.runs.status import read as read_state
from mmfl.training import Record

MADE_WITH = "made_with"  # a table of config.toml that is no part of the configuration
_MOST_NAMED = 10  # runs that a message lists
_log = logging.getLogger(__name__)


class Run:
    """One method with one seed: its record of every round and, after training, its weights.

    `full` is what full participation in the same experiment is called, which it is measured by.
    """

    def __init__(
        self,
        records: Sequence[Record],
        method: str,
        seed: int,
        tasks: Sequence[str],
        clients: int,
        federation: Federation | None = None,
        weights: Sequence[Tensor] | None = None,
        full: str = "full",
    ):
        self.records = list(records)
        self.method, self.seed = method, seed
        self.tasks, self.clients = list(tasks), clients
        self.federation, self.weights = federation, weights
        self.full = full

    def frame(self, quantity: str) -> pd.DataFrame:
        """A recorded quantity, rounds x tasks; `nan` where it was not measured."""
        known = {name for r in self.records for task in r["tasks"].values() for name in task}
        if self.records and quantity not in known:
            raise UserError(f"run: no quantity '{quantity}' was recorded: {nearest(quantity, known)}")
        rows = {r["round"]: {name: task.get(quantity) for name, task in r["tasks"].items()} for r in self.records}
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=self.tasks, dtype=float)
        frame.index.name = "round"
        return frame

    @property
    def accuracy(self) -> pd.DataFrame:
        """The tasks' metric on the test examples, rounds x tasks, of the rounds that were evaluated."""
        return self.frame("metric").dropna(how="all")

    @property
    def loss(self) -> pd.DataFrame:
        """Test loss, rounds x tasks, of the rounds that were evaluated."""
        return self.frame("loss").dropna(how="all")

    @property
    def step_size(self) -> pd.DataFrame:
        """||H||_1, the sum of the aggregation's inverse-probability weights, rounds x tasks."""
        return self.frame("step_size")

    @property
    def summary(self) -> pd.DataFrame:
        """Mean and worst task of every evaluated round."""
        rows = {r["round"]: {"mean": r["mean"], "worst": r["worst"]} for r in self.records if r["mean"] is not None}
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "worst"], dtype=float)
        frame.index.name = "round"
        return frame

    @property
    def costs(self) -> pd.DataFrame:
        """Trainings, forward passes, bytes and stored memory of every round."""
        frame = pd.DataFrame([r["cost"] for r in self.records], index=[r["round"] for r in self.records])
        frame.index.name = "round"
        return frame

    @property
    def faults(self) -> pd.DataFrame:
        """What went wrong with nodes, rounds x kinds of event; no columns where nothing did, as in a simulation."""
        frame = pd.DataFrame([r.get("faults", {}) for r in self.records], index=[r["round"] for r in self.records])
        frame.index.name = "round"
        return frame.fillna(0).astype(int)

    @property
    def participation(self) -> pd.DataFrame:
        """How often each client trained each task, clients x tasks."""
        counts = np.zeros((self.clients, len(self.tasks)), dtype=np.int64)
        for s, task in enumerate(self.tasks):
            drawn = [record["drawn"][task] for record in self.records if task in record["drawn"]]
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

    def module(self, task: str) -> nn.Module:
        """The trained model of a task, ready to use."""
        if self.federation is None or self.weights is None:
            raise UserError("this run was loaded from its records alone, without weights.")
        if task not in self.tasks:
            raise UserError(f"unknown task '{task}': {nearest(task, self.tasks)}")
        s = self.tasks.index(task)
        module = self.federation.tasks[s].build(self.seed, s)
        weights = Layout(module).named(self.weights[s].cpu())
        module.load_state_dict(weights, strict=False)
        return module.eval()

    def plot(self, path: str | Path) -> None:
        """Draws accuracy, participation and step size on one page."""
        Comparison([self]).plot(path)

    def report(self, path: str | Path = "report.html") -> None:
        """Writes everything there is to see as one HTML file, which needs no network. Needs plotly."""
        Comparison([self]).report(path)

    def __repr__(self) -> str:
        last = self.records[-1]["round"] if self.records else 0
        return f"Run({self.method}, seed {self.seed}, {last} rounds)"

    def _repr_html_(self) -> str:
        from mmfl.report import notebook

        return notebook.run(self)


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

    def of(self, method: str) -> list[Run]:
        """The runs of one method, a seed each."""
        if method not in self.methods:
            raise UserError(f"no runs of method '{method}': {nearest(method, self.methods)}")
        return [run for run in self.runs if run.method == method]

    def full_of(self, method: str) -> str | None:
        """What full participation in a method's experiment is called; None where it was not run."""
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
            mine, full = pd.DataFrame(finals.loc[method]), self.full_of(method)
            costs = pd.concat([run.costs for run in self.of(method)]).mean()
            rows[method] = {
                **mine.mean().to_dict(),
                "spread": float(mine["mean"].std(ddof=1)) if len(mine) > 1 else np.nan,
                "relative": _ratio(mine["mean"], finals.loc[full]["mean"]) if full else np.nan,
                "trainings": float(costs["trainings"]),
                "forward_passes": float(costs["forward_passes"]),
                "megabytes": float(costs["bytes_up"] + costs["bytes_down"]) / 1e6,
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")

    def finals(self, window: int | None = None) -> pd.DataFrame:
        """The final metrics of every run, by method and seed: those of tasks, and their mean and worst."""
        rows = {(run.method, run.seed): run.final(window) for run in self.runs}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["method", "seed"])

    def plot(self, path: str | Path) -> None:
        """Draws accuracy, participation and step size on one page."""
        from matplotlib import pyplot

        from mmfl.report.figures import overview
        from mmfl.report.printed import draw

        picture = draw(overview(self))
        picture.savefig(path)
        pyplot.close(picture)

    def report(self, path: str | Path = "report.html") -> None:
        """Writes everything there is to see as one HTML file, which needs no network. Needs plotly."""
        from mmfl.report import page

        page.write(self, Path(path))

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.methods)}; {len(self.runs)} runs)"

    def _repr_html_(self) -> str:
        from mmfl.report import notebook

        return notebook.comparison(self)


def _ratio(ours: pd.Series, theirs: pd.Series) -> float:
    """The mean ratio of two quantities measured with the same seeds, of those where it is a number."""
    return float((ours / theirs).replace([np.inf, -np.inf], np.nan).mean())


class RunDirectory:
    """A run on disk: `config.toml`, `metrics.jsonl` (a line per replica and round), `checkpoint/`.

    `locked` says that whoever made this object holds the run's lock already.
    """

    def __init__(self, path: Path, locked: bool = False):
        self.path, self.locked = path, locked

    @classmethod
    def create(
        cls, path: str | Path, config: dict[str, Any], device: torch.device | None = None, locked: bool = False
    ) -> "RunDirectory":
        """A new directory, with the configuration and what the run is made with; one that is there already, and not
        empty, is never written over."""
        directory = cls(Path(path), locked)
        cls.refuse_used(directory.path)
        content = tomli_w.dumps({**config, MADE_WITH: made_with(device)}).encode()
        with directory.hold():
            cls.refuse_used(directory.path)  # another process may have been faster
            try:
                write_atomically(directory.path / "config.toml", content)
            except OSError as error:
                raise UserError(f"run directory '{path}' cannot be written: {error.strerror}.") from None
        return directory

    @staticmethod
    def refuse_used(path: Path) -> None:
        """Says so where a new run would write over something, or cannot be in this place."""
        check_name("run directory", str(path))
        try:
            is_file = not stat.S_ISDIR(path.stat().st_mode)
            used = not is_file and any(not is_lock(each) for each in path.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"run directory '{shorten(path)}' cannot be made: {error.strerror}.") from None
        if is_file:
            raise UserError(f"run directory '{path}' is a file; expected a new directory, or an empty one.")
        if used:
            raise UserError(f"run directory '{path}' exists; choose another, or go on with `mmfl resume {path}`.")

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """A directory that holds a run."""
        path = Path(path)
        check_name("run directory", str(path))
        try:
            (path / "config.toml").stat()
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"'{path}' is not a run directory: it has no config.toml{_runs_in(path)}.") from None
        except OSError as error:
            raise UserError(f"run directory '{shorten(path)}' cannot be read: {error.strerror}.") from None
        return cls(path)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """While active, no other process can work on the run; an error where one does."""
        with nullcontext() if self.locked else hold(self.path):
            yield

    def remove(self) -> None:
        """Removes it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoint"

    @property
    def metrics(self) -> Path:
        """The record of every round."""
        return self.path / METRICS

    def config(self) -> dict[str, Any]:
        """The configuration the run was started with."""
        try:
            return tomllib.loads((self.path / "config.toml").read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / 'config.toml'} cannot be read: {error}.") from None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Says how to go on where the run cannot be written, as on a full disk."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"run '{self.path}' stopped, because it cannot be written: {error.strerror}.\n"
                f"Once it can, `mmfl resume {self.path}` goes on from its last checkpoint (in Python: resume=True)."
            ) from None

    def append(self, records: Sequence[Record]) -> None:
        """Adds the records of a round, on disk when this returns."""
        with self.writing(), self.metrics.open("ab", buffering=0) as file:
            content = memoryview("".join(json.dumps(record) + "\n" for record in records).encode())
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())

    def checked(self) -> Records:
        """All records, with what is wrong with them."""
        try:
            return read_records(self.metrics)
        except OSError as error:
            raise UserError(f"{self.metrics} cannot be read: {error.strerror}.") from None

    def records(self) -> list[Record]:
        """All records. Those that are there twice are left out with a warning; where some are missing or broken that is
        an error. The last line may have been cut short by a crash."""
        found = self.checked()
        settings, state = read_settings(self.path / "config.toml"), read_state(self.path)
        if problem := found.problem(state.done if state else 0, replicas=settings.replicas if settings else 0):
            raise UserError(f"{self.metrics} is damaged: {problem}.\n{PUT_BACK}")
        for note in found.notes():
            _log.warning("%s: %s", self.metrics, note)
        return found.all

    def rewind(self, round: int, replicas: int) -> list[Record]:
        """Forgets what was recorded after a round, and returns the rest, which must be there of all replicas."""
        found = self.checked()
        if problem := found.problem(round, until=round, replicas=replicas):
            raise UserError(
                f"{self.metrics} is damaged: {problem}, but the checkpoint is of round {round}.\n{PUT_BACK}"
            )
        kept = [record for record in found.all if record["round"] <= round]
        with self.writing():
            write_atomically(self.metrics, "".join(json.dumps(record) + "\n" for record in kept).encode())
        return kept


PUT_BACK = "Put the file back as it was, or start a new run."


def _runs_in(folder: Path) -> str:
    """The runs that a folder holds, for whoever named the folder in place of one; nothing where it holds none."""
    try:
        found = sorted(each.name for each in folder.iterdir() if (each / "config.toml").is_file())
    except OSError:
        return ""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f", but holds the runs {', '.join(found[:_MOST_NAMED])}{more}" if found else ""


def made_with(device: torch.device | None = None) -> dict[str, str]:
    """Versions and, where one process computes, the device: what may explain that numbers differ."""
    versions = {"mmfl": mmfl.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if device is None:
        return versions
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return {**versions, "device": f"{device}{name}"}


def load(path: str | Path) -> Comparison:
    """The runs in a directory, from their records.

    >>> load("runs/nothing-here")
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: 'runs/nothing-here' is not a run directory: it has no config.toml.
    """
    records = RunDirectory.open(path).records()
    if not records:
        raise UserError(f"run '{path}' has no finished round yet.")
    return from_records(records)


def from_records(records: Sequence[Record]) -> Comparison:
    """The runs that records are of, by method and seed."""
    tasks = list(dict.fromkeys(name for record in records for name in record["tasks"]))
    mine: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        mine.setdefault((record["method"], record["seed"]), []).append(record)
    return Comparison([Run(known, *pair, tasks, known[0]["clients"]) for pair, known in mine.items()])
