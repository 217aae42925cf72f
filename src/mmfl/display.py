"""What the command line shows: a summary at the start, live progress, a table at the end."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from mmfl.experiment import Listener
from mmfl.report import exports, figures, interactive, page, tables
from mmfl.report.gather import Source
from mmfl.run import Comparison, RunDirectory
from mmfl.training import Record, Replica

_SECONDS_BETWEEN_LINES = 5.0


class Display(Listener):
    """Live progress on a terminal (round, each task's metric by method, time left); plain lines elsewhere."""

    def __init__(self, console: Console):
        self.console = console
        self.latest: dict[tuple[str, int], Record] = {}
        self.live: Live | None = None

    def begin(self, replicas: Sequence[Replica], first: int, last: int) -> None:
        """Starts the clock."""
        self.first, self.last, self.latest = first, last, {}
        self.begun = self.spoken = time.monotonic()
        self.tasks = replicas[0].federation.task_names
        self.bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.progress = self.bar.add_task("rounds", total=last, completed=first - 1)
        if self.console.is_terminal:
            self.live = Live(self.bar, console=self.console, refresh_per_second=8, transient=True)
            self.live.start()

    def round(self, records: Sequence[Record]) -> None:
        """Shows the round that ended."""
        for record in records:
            if record["mean"] is not None:
                self.latest[record["method"], record["seed"]] = record
        t = records[0]["round"]
        if self.live:
            self.bar.update(self.progress, completed=t)
            self.live.update(Group(self._table(), self.bar))
        elif t == self.last or t == self.first or time.monotonic() - self.spoken >= _SECONDS_BETWEEN_LINES:
            self.spoken = time.monotonic()
            self.console.print(self._line(t), highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Leaves the terminal as it was."""
        if self.live:
            self.live.stop()

    def _means(self) -> dict[str, dict[str, float]]:
        """Latest metric by method and task, averaged over seeds."""
        means: dict[str, dict[str, float]] = {}
        for method in dict.fromkeys(method for method, _ in self.latest):
            mine = [record for (name, _), record in self.latest.items() if name == method]
            means[method] = {"mean": _average([record["mean"] for record in mine])}
            for task in self.tasks:
                means[method][task] = _average([r["tasks"][task]["metric"] for r in mine if task in r["tasks"]])
        return means

    def _table(self) -> Table:
        table = listing("method", *self.tasks, "mean")
        for method, values in self._means().items():
            table.add_row(method, *(_text(values[task]) for task in self.tasks), _text(values["mean"]))
        return table

    def _line(self, t: int) -> str:
        left = (time.monotonic() - self.begun) / (t - self.first + 1) * (self.last - t)
        means = "  ".join(
            f"{method}: " + " ".join(f"{task} {_text(values[task])}" for task in self.tasks)
            for method, values in self._means().items()
        )
        return f"round {t}/{self.last}  {means}  {_duration(left)} left"


def show_summary(console: Console, replicas_text: dict[str, str]) -> None:
    """A one-glance summary before training."""
    width = max(len(label) for label in replicas_text)
    for label, text in replicas_text.items():
        console.print(f"[bold]{label:<{width}}[/]  {text}", highlight=False, soft_wrap=True)


def show_results(console: Console, comparison: Comparison) -> None:
    """The result, a row per method: how good, at what cost a round, and what went wrong."""
    for title, frame in tables.results(comparison).items():
        show_texts(console, title, frame, justify="right")


def conclude(console: Console, comparison: Comparison, path: Path, seconds: float) -> None:
    """The result of a run that took so many seconds, and its report in its directory: a page where plotly is
    installed, pictures otherwise."""
    show_results(console, comparison)
    begun = time.monotonic()
    if interactive.installed():
        source = Source(path.name, RunDirectory.open(path).config(), comparison)
        written = f"report: {page.write(comparison, path / 'report.html', [source])}"
    else:
        exports.export(figures.main(comparison), path / "report", ["png"])
        written = f"pictures: {path / 'report'}"
    took = time.monotonic() - begun
    slow = f" ({took:.1f} s)" if took > 1 else ""
    console.print(f"{seconds:.1f} s; {written}{slow}", highlight=False, soft_wrap=True)


def show_texts(console: Console, title: str, frame: pd.DataFrame, justify: Literal["left", "right"] = "left") -> None:
    """A table of texts and numbers as they are, without its index."""
    table = listing(*(escape(str(name)) for name in frame.columns))
    table.title, table.title_justify = escape(title), "left"
    for column in table.columns[1:]:
        column.justify = justify
    for row in frame.astype(object).to_numpy().tolist():
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)


def listing(*columns: str) -> Table:
    """An empty table in the one style of all tables; names, in the first column, stay whole."""
    first = Column(columns[0], no_wrap=True)
    return Table(first, *columns[1:], box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)


def _average(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else float("nan")


def _text(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
