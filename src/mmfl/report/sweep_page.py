"""What is shown of a sweep: progress, tables, and a report of one page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from mmfl.report import exports, interactive
from mmfl.report.display import Display, show_texts
from mmfl.report.page import fill, write_page, written_by
from mmfl.report.sweep_figures import figures
from mmfl.report.tables import final_rounds
from mmfl.runs.grid import points, short_names, text_of
from mmfl.runs.layout import REPORT_PAGE, REPORT_PICTURES
from mmfl.runs.results import Comparison
from mmfl.runs.sweep import SweepListener
from mmfl.runs.sweep_directory import SweepPart
from mmfl.runs.sweep_results import SPREAD, Sweep


class SweepDisplay(Display, SweepListener):
    """Live progress of a sweep's parts; in plain lines, the best run of the part under way."""

    def part(self, part: SweepPart, number: int, parts: int) -> None:
        """Says which part comes next, where there are several."""
        if parts > 1:
            others = f" and {len(part.labels) - 1} more in lockstep" if len(part.labels) > 1 else ""
            text = f"part {number}/{parts}: {part.labels[0]}{others}"
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _means_in_line(self) -> str:
        best = max(self.latest.values(), key=lambda record: record.mean or 0.0, default=None)
        return f"highest mean {best.mean:.3f}: {best.method}, seed {best.seed}" if best and best.mean else ""


def tables(sweep: Sweep) -> dict[str, pd.DataFrame]:
    """Tables of texts by title: a row per point and method, and the best of them."""
    frame, best, names = sweep.table(), sweep.best().reset_index(), short_names(sweep.keys)
    final, chosen = (
        table[[*sweep.keys, "method"]].map(text_of).rename(columns=names).astype(object) for table in (frame, best)
    )
    for name in sweep.quantities:
        final[name] = _with_spread(frame[name], frame[f"{name}{SPREAD}"])
    chosen.insert(0, "best", best["best"])
    chosen["metric"] = _with_spread(best["metric"], best["spread"])
    return {_title(sweep): final, "best point and method, by task": chosen}


def notes(sweep: Sweep) -> list[str]:
    """What a reader of the tables must know: what failed or is not finished, and where the grid may be too narrow."""
    failed = [f"{label} failed: {reason}" for label, reason in sweep.failures.items()]
    left = len(sweep.unfinished)
    unfinished = [f"{left} of {len(sweep)} points and methods are not finished"] if left else []
    return [*failed, *unfinished, *sweep.edges()]


def show(console: Console, sweep: Sweep) -> None:
    """The tables of a sweep, and what must be known about them."""
    for title, frame in tables(sweep).items():
        show_texts(console, title, frame, justify="right")
    for note in notes(sweep):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def conclude(console: Console, sweep: Sweep, path: Path, settings: Mapping[str, Any], seconds: float) -> str:
    """Shows a sweep and writes its report into its directory: a page where plotly is installed, pictures otherwise.
    Returns a line that says how long it took and where the report is."""
    show(console, sweep)
    if not list(sweep):
        return f"{seconds:.1f} s; no report, as nothing has finished"
    if interactive.is_installed():
        written = f"report: {write(sweep, path / REPORT_PAGE, settings)}"
    else:
        exports.export(figures(sweep), path / REPORT_PICTURES, ["png"])
        written = f"pictures: {path / REPORT_PICTURES}"
    return f"{seconds:.1f} s; {written}"


def write(sweep: Sweep, path: Path, settings: Mapping[str, Any] | None = None) -> Path:
    """Writes the report of a sweep, with its settings where they are known."""
    grid = {key: ", ".join(map(text_of, values)) for key, values in sweep.grid.items()}
    facts = {
        "grid": f"{len(points(sweep.grid)):,} points",
        **grid,
        "methods": ", ".join(sweep.methods),
        "tasks": ", ".join(sweep.tasks),
        "seeds": ", ".join(map(str, sorted({run.seed for run in sweep}))),
        "notes": "; ".join(notes(sweep)),
        "written": written_by(),
    }
    title = f"Sweep over {', '.join(short_names(sweep.keys).values())}"
    configurations = {"all points, but for the grid": settings} if settings else {}
    return write_page(fill(title, facts, tables(sweep), figures(sweep), configurations, methods=_choices(sweep)), path)


def _choices(sweep: Sweep) -> list[str]:
    """The methods, where they are lines that can be hidden."""
    return list(sweep.methods) if len(figures(sweep)) == 1 else []


def _title(sweep: Sweep) -> str:
    runs = list(sweep)
    if not runs:
        return "final test metric"
    seeds = len({run.seed for run in runs})
    over = f"{seeds} seeds; ±: standard deviation over seeds" if seeds > 1 else "1 seed"
    return f"final test metric: {final_rounds(Comparison(runs))}, {over}"


def _with_spread(mean: pd.Series, spread: pd.Series) -> list[str]:
    """Means with their standard deviations, where these are known."""
    pairs = zip(mean, spread, strict=True)
    return ["" if pd.isna(m) else f"{m:.3f}" if pd.isna(s) else f"{m:.3f} ± {s:.3f}" for m, s in pairs]
