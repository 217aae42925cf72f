"""Figures of a comparison: accuracy, mean and worst task, participation, step size."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from mmfl.run import Comparison, Run

# Okabe and Ito's colours, told apart by everyone, with dashes for print.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = ["-", "--", "-.", ":"]
_MAX_CLIENTS = 400
_TABLES: dict[str, Callable[[Run], pd.DataFrame]] = {
    "score": lambda run: run.accuracy.join(run.summary),
    "step": lambda run: run.step_size.assign(mean=run.step_size.mean(axis=1)),
}


def curve(axes: Axes, runs: pd.DataFrame, label: str, n: int) -> None:
    """The n-th line of a panel: mean over the columns (runs) by row, with a band of one standard deviation."""
    mean, spread = runs.mean(axis=1), runs.std(axis=1)
    colour = COLOURS[n % len(COLOURS)]
    axes.plot(mean.index, mean, DASHES[n % len(DASHES)], color=colour, label=label, linewidth=1.5)
    if runs.shape[1] > 1:
        axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)


def _curves(axes: Axes, comparison: Comparison, table: str, column: str) -> None:
    """A line per method for a column of its runs' tables."""
    for n, method in enumerate(comparison.methods):
        runs = pd.concat([_TABLES[table](run)[column] for run in comparison.of(method)], axis=1)
        curve(axes, runs, method, n)
    axes.grid(alpha=0.3)
    axes.set_xlabel("round")


def _draw_accuracy(axes: Iterable[Axes], comparison: Comparison) -> None:
    titles = {**{task: task for task in comparison.tasks}, "mean": "mean of the tasks", "worst": "worst task"}
    for panel, (column, title) in zip(axes, titles.items(), strict=True):
        _curves(panel, comparison, "score", column)
        panel.set_title(title)
        panel.set_ylabel("test metric")


def _draw_participation(axes: Axes, comparison: Comparison, method: str) -> None:
    """Client x task heat map, over all seeds; clients in the order of their trainings."""
    counts = sum(run.participation for run in comparison.of(method))
    assert isinstance(counts, pd.DataFrame)
    rounds = sum(len(run.records) for run in comparison.of(method))
    order = counts.sum(axis=1).sort_values(ascending=False).index
    shown = counts.loc[order].to_numpy()[:: max(1, len(counts) // _MAX_CLIENTS)] / rounds
    image = axes.imshow(shown, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    axes.set_xticks(range(len(comparison.tasks)), comparison.tasks, rotation=30, ha="right")
    axes.set_ylabel("clients, most active first")
    never = int((counts.sum(axis=1) == 0).sum())
    axes.set_title(f"{method}: {never} never seen" if never else method)
    axes.figure.colorbar(image, ax=axes, label="trainings a round")


def _draw_step_size(axes: Axes, comparison: Comparison) -> None:
    _curves(axes, comparison, "step", "mean")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_title("step size ||H||, mean of the tasks")


def grid(panels: int, columns: int = 3, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, in rows of at most `columns`."""
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4.2 * columns, height * rows), squeeze=False, layout="constrained"
    )
    flat = list(axes.flat)
    for spare in flat[panels:]:
        spare.set_visible(False)
    return figure, flat[:panels]


def legend(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, above them, with the lines of one."""
    handles, labels = axes.get_legend_handles_labels()
    fit = max(2, int(figure.get_figwidth() / 2))
    figure.legend(handles, labels, loc="outside upper center", ncols=min(fit, len(labels)), frameon=False)


def accuracy(comparison: Comparison) -> Figure:
    """Test metric of each task, mean and worst task, by round."""
    figure, axes = grid(len(comparison.tasks) + 2)
    _draw_accuracy(axes, comparison)
    legend(figure, axes[0])
    return figure


def participation(comparison: Comparison) -> Figure:
    """Which client trained which task how often, a panel per method."""
    figure, axes = grid(len(comparison.methods), height=4.0)
    for panel, method in zip(axes, comparison.methods, strict=True):
        _draw_participation(panel, comparison, method)
    return figure


def step_size(comparison: Comparison) -> Figure:
    """||H||_1 of each task by round; 1 on average for an unbiased method."""
    figure, axes = grid(len(comparison.tasks))
    for panel, task in zip(axes, comparison.tasks, strict=True):
        _curves(panel, comparison, "step", task)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.set_title(task)
        panel.set_ylabel("step size ||H||")
    legend(figure, axes[0])
    return figure


def overview(comparison: Comparison) -> Figure:
    """All of it on one page."""
    figure, axes = grid(len(comparison.tasks) + 3 + len(comparison.methods))
    tested = len(comparison.tasks) + 2
    _draw_accuracy(axes[:tested], comparison)
    _draw_step_size(axes[tested], comparison)
    for panel, method in zip(axes[tested + 1 :], comparison.methods, strict=True):
        _draw_participation(panel, comparison, method)
    legend(figure, axes[0])
    return figure


FIGURES: dict[str, Callable[[Comparison], Figure]] = {
    "overview": overview,
    "accuracy": accuracy,
    "participation": participation,
    "step_size": step_size,
}


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Draws every figure into a folder as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in FIGURES.items():
        paths.append(save(draw(comparison), folder / f"{name}.png"))
    return paths


def save(figure: Figure, path: Path, dpi: int = 120) -> Path:
    """Writes a figure as a PNG of few colours, a third of the usual size, and closes it."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    Image.fromarray(pixels).quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    pyplot.close(figure)
    return path


def merge(comparisons: Iterable[Comparison]) -> Comparison:
    """Runs of several directories side by side."""
    return Comparison([run for comparison in comparisons for run in comparison])
