"""What all pictures on paper share: panels in a grid, curves with their spread, one legend, small files."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from mmfl.report.palette import COLOURS as COLOURS
from mmfl.report.palette import DASHES as DASHES
from mmfl.report.palette import style


def curve(axes: Axes, runs: pd.DataFrame, label: str, n: int) -> None:
    """The n-th line of a panel: mean over the columns (runs) by row, with a band of one standard deviation."""
    mean, spread = runs.mean(axis=1), runs.std(axis=1)
    colour, dash = style(n)
    axes.plot(mean.index, mean, dash, color=colour, label=label, linewidth=1.5)
    if runs.shape[1] > 1:
        axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)


def grid(panels: int, columns: int = 3, height: float = 3.0) -> tuple[Figure, list[Axes]]:
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


def legend(figure: Figure, *axes: Axes) -> None:
    """One legend for all panels, above them, with the lines of some."""
    lines: dict[str, Artist] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            lines.setdefault(str(label), handle)
    fit = max(2, int(figure.get_figwidth() / 2))
    figure.legend(
        list(lines.values()), list(lines), loc="outside upper center", ncols=min(fit, len(lines)), frameon=False
    )


def save(figure: Figure, path: Path, dpi: int = 120) -> Path:
    """Writes a figure as a PNG of few colours, a third of the usual size, and closes it."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    Image.fromarray(pixels).quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    pyplot.close(figure)
    return path
