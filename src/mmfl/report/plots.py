"""Pictures on paper, drawn by matplotlib: figures, and what other pictures share with them."""

from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from PIL import Image

from mmfl.report.figure import Bars, Dots, Figure, Heat, Line, Panel
from mmfl.report.palette import COLOURS as COLOURS
from mmfl.report.palette import DASHES as DASHES
from mmfl.report.palette import DIVERGING, NOTHING, ink, style

_DIVERGING = LinearSegmentedColormap.from_list("diverging", DIVERGING)
_MARKERS = "os^DvPX*"
_CELL, _BAR = 0.28, 0.2  # inches of a row with texts, and of a bar


def draw(figure: Figure) -> Picture:
    """The figure as a picture, in rows of up to three panels with one legend above."""
    marks = [mark for panel in figure.panels for mark in panel.marks]
    cells = [mark for mark in marks if isinstance(mark, Heat) and mark.texts]
    heat = any(isinstance(mark, Heat) for mark in marks)
    bars = [_BAR * len(mark.names) for mark in marks if isinstance(mark, Bars)]
    height = max([4.0 if heat else 3.0, *bars, *(_CELL * len(mark.rows) + 1 for mark in cells)])
    picture, axes = grid(len(figure.panels), figure.columns(), height)
    if cells:
        picture.set_figwidth(figure.columns() * max(5.0, 0.65 * len(cells[0].columns) + 2.5))
    for panel, place in zip(figure.panels, axes, strict=True):
        _draw_panel(place, panel)
    if any(isinstance(mark, Line | Dots) for mark in marks):
        legend(picture, *axes)
    return picture


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set(title=_text(panel.title), xlabel=_text(panel.x_label), ylabel=_text(panel.y_label))
    if panel.reference is not None:
        axes.axhline(panel.reference, color="grey", linewidth=0.8)
    if panel.log:
        axes.set(**{f"{panel.log}scale": "log"})
    for mark in panel.marks:
        _draw(mark, axes)


@singledispatch
def _draw(mark: object, axes: Axes) -> None:
    raise TypeError(f"{type(mark).__name__} is no mark.")


@_draw.register
def _(mark: Line, axes: Axes) -> None:
    colour, dash = style(mark.group)
    dot = "o" if len(mark.x) == 1 else ""
    shade = 0.4 if mark.pale else 1.0
    axes.plot(mark.x, mark.y, dash, marker=dot, color=colour, alpha=shade, label=_text(mark.name), linewidth=1.5)
    if mark.low is not None and mark.high is not None:
        axes.fill_between(mark.x, mark.low, mark.high, color=colour, alpha=0.15, linewidth=0)
    axes.grid(alpha=0.3)


@_draw.register
def _(mark: Dots, axes: Axes) -> None:
    colour, shape = style(mark.group)[0], _MARKERS[mark.group % len(_MARKERS)]
    axes.scatter(mark.x, mark.y, s=18, color=colour, marker=shape, alpha=0.8, label=_text(mark.name))
    axes.grid(alpha=0.3)


@_draw.register
def _(mark: Bars, axes: Axes) -> None:
    colours = [style(group)[0] for group in range(len(mark.names))]
    bars = axes.barh([_text(name) for name in mark.names], mark.values, color=colours)
    axes.bar_label(bars, fmt=lambda value: f"{value:,.4g}", padding=2, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)


@_draw.register
def _(mark: Heat, axes: Axes) -> None:
    shades = _DIVERGING if mark.low < 0 else colormaps["viridis"]
    shades = shades.with_extremes(bad=NOTHING if mark.nothing else "white")
    values = np.ma.masked_invalid(mark.values)
    image = axes.imshow(
        values, aspect="auto", cmap=shades, vmin=mark.low, vmax=mark.high, interpolation="nearest", origin="upper"
    )
    axes.set_xticks(range(len(mark.columns)), [_text(name) for name in mark.columns], rotation=30, ha="right")
    axes.figure.colorbar(image, ax=axes, label=_text(mark.label))
    if mark.texts:
        axes.set_yticks(range(len(mark.rows)), [_text(name) for name in mark.rows])
        for row, texts in enumerate(mark.texts):
            for column, text in enumerate(texts):
                share = (mark.values[row, column] - mark.low) / (mark.high - mark.low)
                colour = ink(share, mark.low < 0) if text else "black"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)


def _text(text: str) -> str:
    """Matplotlib reads formulas between dollars; names are to be shown as they are."""
    return text.replace("$", r"\$")


def curve(axes: Axes, runs: pd.DataFrame, label: str, n: int) -> None:
    """The n-th line of a panel: mean over the columns (runs) by row, with a band of one standard deviation."""
    mean, spread = runs.mean(axis=1), runs.std(axis=1)
    colour, dash = style(n)
    axes.plot(mean.index, mean, dash, color=colour, label=label, linewidth=1.5)
    if runs.shape[1] > 1:
        axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)


def grid(panels: int, columns: int = 3, height: float = 3.0) -> tuple[Picture, list[Axes]]:
    """A figure with a number of panels, in rows of at most `columns`."""
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4.2 * columns, height * rows), squeeze=False, layout="constrained"
    )
    flat = list(axes.flat)
    for spare in flat[panels:]:
        spare.set_visible(False)
    return figure, flat[:panels]


def panels(number: int, columns: int = 3, height: float = 3.0, **labels: Any) -> tuple[Picture, list[Axes]]:
    """The same with grid lines; `labels` are those of every panel."""
    figure, axes = grid(number, columns, height)
    for panel in axes:
        panel.set(**labels)
        panel.grid(alpha=0.3)
    return figure, axes


def legend(figure: Picture, *axes: Axes) -> None:
    """One legend for all panels, above them, with the lines of some."""
    lines: dict[str, Artist] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            lines.setdefault(str(label), handle)
    fit = max(2, int(figure.get_figwidth() / 2))
    figure.legend(
        list(lines.values()), list(lines), loc="outside upper center", ncols=min(fit, len(lines)), frameon=False
    )


def save(figure: Picture, path: Path, dpi: int = 120) -> Path:
    """Writes a figure as a PNG of few colours, a third of the usual size, and closes it."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    Image.fromarray(pixels).quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    pyplot.close(figure)
    return path
