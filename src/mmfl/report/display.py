"""What is shown of an experiment: a summary at the start, live progress, a table at the end."""

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mmfl.record import RoundRecord
from mmfl.report.terminal_table import listing
from mmfl.runs.layout import REPORT_PAGE, REPORT_PICTURES
from mmfl.runs.listener import Listener, RunInfo
from mmfl.runs.results import Comparison
from mmfl.runs.status import RunEnd

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_OUTPUTS = 0.2


class Display(Listener):
    """Live progress on a terminal or in a notebook (round, each task's metric by method, time left); plain lines
    elsewhere."""

    def __init__(self, console: Console):
        self.console = console
        self.latest: dict[tuple[str, int], RoundRecord] = {}
        self.live: Live | Output | None = None

    def begin(self, info: RunInfo) -> None:
        """Starts the clock."""
        self.first, self.last, self.latest = info.first, info.rounds, {}
        self.begun = self.spoken = time.monotonic()
        self.tasks = info.tasks
        columns = [TextColumn("round"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()]
        self.bar = Progress(*columns, console=self.console)
        self.progress = self.bar.add_task("rounds", total=self.last, completed=self.first - 1)
        if self.console.is_interactive:
            self.live = Live(self.bar, console=self.console, refresh_per_second=8, transient=True)
        elif self.console.is_jupyter:
            self.live = Output(self.bar)
        if self.live:
            self.live.start()

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Shows the round that ended."""
        for record in records:
            if record.mean is not None or any(task.metrics for task in record.tasks.values()):
                self.latest[record.method, record.seed] = record
        t = records[0].round
        if self.live:
            self.bar.update(self.progress, completed=t)
            self.live.update(Group(self._table(t), self.bar))
        elif t == self.last or t == self.first or time.monotonic() - self.spoken >= _SECONDS_BETWEEN_LINES:
            self.spoken = time.monotonic()
            self.console.print(self._line(t), highlight=False, markup=False, soft_wrap=True)

    def end(self, end: RunEnd) -> None:
        """Leaves the terminal as it was; a notebook keeps the last state."""
        if self.live:
            self.live.stop()

    def _means(self) -> dict[str, list[str]]:
        """By method the latest metric of each task, and last their mean, averaged over seeds."""
        means = {}
        for method in dict.fromkeys(method for method, _ in self.latest):
            subset = [record for record in self.latest.values() if record.method == method]
            metrics = [[r.tasks[task].metric for r in subset if task in r.tasks] for task in self.tasks]
            means[method] = [_average(values) for values in (*metrics, [r.mean for r in subset])]
        return means

    def _tested(self, t: int) -> str:
        """Which round the metrics are from, where it is not this one."""
        last = max((record.round for record in self.latest.values()), default=0)
        return "" if last == t else f"tested in round {last}" if last else "not tested yet"

    def _table(self, t: int) -> Table:
        table = listing("method", *map(escape, self.tasks), "mean")
        table.caption, table.caption_justify = self._tested(t) or None, "left"
        for method, values in self._means().items():
            table.add_row(escape(method), *values)
        return table

    def _line(self, t: int) -> str:
        left = (time.monotonic() - self.begun) / (t - self.first + 1) * (self.last - t)
        tested = self._tested(t)
        parts = [f"round {t}/{self.last}", self._means_in_line(), tested and f"({tested})", f"{_duration(left)} left"]
        return "  ".join(filter(None, parts))

    def _means_in_line(self) -> str:
        return "  ".join(
            f"{method}: " + " ".join(f"{task} {value}" for task, value in zip(self.tasks, values[:-1], strict=True))
            for method, values in self._means().items()
        )


class Output:
    """One output of a notebook's cell, written over and over: what `Live` is to a terminal.

    rich's own `Live` would need ipywidgets there.
    """

    def __init__(self, renderable: RenderableType):
        self.renderable = renderable

    def start(self) -> None:
        """Makes the output."""
        from IPython.display import display

        self.handle = display(self._html(), display_id=True)
        self.written = time.monotonic()

    def update(self, renderable: RenderableType) -> None:
        """Shows something else, but not more often than a notebook can follow."""
        self.renderable = renderable
        if time.monotonic() - self.written > _SECONDS_BETWEEN_OUTPUTS:
            self.stop()

    def stop(self) -> None:
        """Shows what was last given."""
        self.handle.update(self._html())
        self.written = time.monotonic()

    def _html(self) -> Any:
        from IPython.display import HTML

        page = Console(file=io.StringIO(), record=True, width=100, no_color=True, force_jupyter=False)
        page.print(self.renderable)
        return HTML(page.export_html(code_format='<pre style="line-height:normal">{code}</pre>', inline_styles=True))


def show_summary(console: Console, texts: dict[str, str]) -> None:
    """A one-glance summary before training."""
    width = max(len(label) for label in texts)
    for label, text in texts.items():
        console.print(f"[bold]{label:<{width}}[/]  {escape(text)}", highlight=False, soft_wrap=True)


def show_results(console: Console, comparison: Comparison) -> None:
    """The results, a row per method: final metric, cost of a round, and faults of nodes."""
    from mmfl.report import tables  # here and below, so that the first round does not wait for the report

    for title, frame in tables.results(comparison).items():
        show_texts(console, title, frame, justify="right")


def conclude(console: Console, comparison: Comparison, path: Path, seconds: float) -> str:
    """Shows the result of a run and writes its report into its directory: a page where plotly is installed, pictures
    otherwise. Returns a line that says how long the run took and where the report is."""
    from mmfl.report import exports, figures, interactive, page
    from mmfl.report.sources import Source
    from mmfl.runs.directory import RunDirectory

    show_results(console, comparison)
    begun = time.monotonic()
    if interactive.is_installed():
        source = Source(path.name, RunDirectory.open(path).config(), comparison)
        written = f"report: {page.write(comparison, path / REPORT_PAGE, [source])}"
    else:
        exports.export(figures.main(comparison), path / REPORT_PICTURES, ["png"])
        written = f"pictures: {path / REPORT_PICTURES}"
    took = time.monotonic() - begun
    slow = f" ({took:.1f} s)" if took > 1 else ""
    return f"{seconds:.1f} s; {written}{slow}"


def show_texts(console: Console, title: str, frame: pd.DataFrame, justify: Literal["left", "right"] = "left") -> None:
    """A table of texts and numbers as they are, without its index."""
    table = listing(*(escape(str(column)) for column in frame.columns))
    table.title, table.title_justify = escape(title), "left"
    for column in table.columns[1:]:
        column.justify = justify
    for row in frame.astype(object).to_numpy().tolist():
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)


def _average(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    mean = float(np.mean(known)) if known else np.nan
    return "-" if np.isnan(mean) else f"{mean:.3f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
