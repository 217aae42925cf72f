"""What happened when, where clients have devices: the metric by seconds, who trained what, and what was in vain."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mmfl.record import Span
from mmfl.report.figure import Bars, Figure, Line, Panel
from mmfl.report.observations import SUMMARIES, curves, describe_bands
from mmfl.report.scores import scores
from mmfl.runs.results import Comparison, Run

_SPANS, _CLIENTS = 150, 40  # of a timeline, at most


def seconds(comparison: Comparison) -> Figure | None:
    """Test metric of each task, and the mean and worst task, by seconds on the clock."""
    ends = {
        (run.method, run.seed, record.round): record.time.end
        for run in comparison
        for record in run.records
        if record.time is not None
    }
    if not ends:
        return None
    table = scores(comparison)
    keys = zip(table["method"], table["seed"], table["round"], strict=True)
    table = table.assign(seconds=[ends.get(key, np.nan) for key in keys]).dropna(subset=["seconds"])
    titles = {task: task for task in comparison.tasks} | {f"({name})": title for name, title in SUMMARIES.items()}
    panels = [
        Panel(title, curves(subset, "value", comparison.methods, "seconds", least=0), "seconds", "test metric")
        for task, title in titles.items()
        if len(subset := table[table["task"] == task])
    ]
    caption = "Metric on the test examples by time on the devices' clock." + describe_bands(comparison)
    return Figure("seconds", "Test metric by time", caption, panels, table) if panels else None


def timeline(comparison: Comparison) -> Figure | None:
    """Who trained what when, in the first rounds: a panel per method, a row per client."""
    panels, tables = [], []
    for method in comparison.methods:
        run = comparison.of(method)[0]
        spans = _first_spans(run)
        if spans:
            panels.append(Panel(method, _bars(run, spans), "seconds", "clients"))
            tables.append(pd.DataFrame(spans).assign(method=method, task=[run.tasks[span.task] for span in spans]))
    if not panels:
        return None
    caption = (
        "Trainings of the first rounds on the devices' clock, a row per client and a colour per task (the first seed; "
        "of many clients some). Pale: work in vain, since the round ended, enough others were faster, or the client's "
        "session was over."
    )
    return Figure("timeline", "Who trained what when", caption, panels, pd.concat(tables, ignore_index=True))


def utilisation(comparison: Comparison) -> Figure | None:
    """How much of their time devices worked, and in vain."""
    rows = [(method, *_totals(comparison.of(method))) for method in comparison.methods]
    table = pd.DataFrame(rows, columns=["method", "seconds", "utilisation", "wasted"]).dropna()
    if table.empty:
        return None
    names = table["method"].tolist()
    titles = {
        "seconds": "seconds a round",
        "utilisation": "share of the time offered that devices worked",
        "wasted": "share of their work that was in vain",
    }
    panels = [Panel(title, [Bars(names, table[name].to_numpy(dtype=np.float64))]) for name, title in titles.items()]
    caption = "Means over rounds and seeds. A device is offered from when it is sent a task until the round ends."
    return Figure("utilisation", "Devices' time", caption, panels, table)


def _first_spans(run: Run) -> list[Span]:
    """The trainings of the first rounds, of a number of clients that can be told apart."""
    found: list[Span] = []
    for record in run.records:
        new = [] if record.time is None else list(record.time.spans)
        if found and len(found) + len(new) > _SPANS:
            break
        found += new
    clients = sorted({span.client for span in found})
    chosen = set(np.array(clients)[np.linspace(0, len(clients) - 1, min(len(clients), _CLIENTS)).astype(int)].tolist())
    return [span for span in found if span.client in chosen]


def _bars(run: Run, spans: Sequence[Span]) -> list[Line]:
    """A line per task with a piece for each training, and pale ones for what was in vain."""
    row = {client: n for n, client in enumerate(sorted({span.client for span in spans}))}
    lines = []
    for s, task in enumerate(run.tasks):
        for pale in (False, True):
            own = [span for span in spans if span.task == s and bool(span.cause) == pale]
            if own:
                x = np.array([(span.begin, span.end, np.nan) for span in own]).ravel()
                lane = [row[span.client] + 0.25 * (s / len(run.tasks) - 0.5) for span in own]
                y = np.array([(at, at, np.nan) for at in lane]).ravel()
                lines.append(Line(f"{task}, in vain" if pale else task, x, y, s, pale=pale))
    return lines


def _totals(runs: Sequence[Run]) -> tuple[float, float, float]:
    """Seconds a round, busy / offered and wasted / busy, over all rounds of all seeds; nan without devices."""
    times = [record.time for run in runs for record in run.records if record.time is not None]
    busy, offered = sum(time.busy for time in times), sum(time.offered for time in times)
    if not times:
        return np.nan, np.nan, np.nan
    wasted = sum(sum(time.wasted.values()) for time in times)
    mean = float(np.mean([time.seconds for time in times]))
    return mean, busy / offered if offered else 0.0, wasted / busy if busy else 0.0
