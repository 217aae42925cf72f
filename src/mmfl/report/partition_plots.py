"""Figures of a federation's data: who holds how much of what."""

import re
from pathlib import Path

import numpy as np
from matplotlib import colormaps, pyplot
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mmfl.data.structure import length
from mmfl.errors import UserError, nearest, shorten
from mmfl.federation import Federation
from mmfl.report.palette import COLOURS, style
from mmfl.report.plots import save

_MAX_ROWS = 250
_MAX_TICKS = 24
Counts = NDArray[np.int64]


def draw_labels(federation: Federation, task: str) -> Figure:
    """Client x label heat map of a task, with the clients' volumes beside it and the labels' above.

    Clients with the same main labels (at least half as frequent as their most frequent one) are neighbours; a row
    stands for several clients where there are many.
    """
    if task not in federation.task_names:
        raise UserError(f"unknown task '{task}': {nearest(task, federation.task_names)}")
    s = federation.task_names.index(task)
    if federation.tasks[s].data.labels is None:
        raise UserError(f"task '{task}': the targets are not class numbers, so there are no labels to draw.")
    classes, pool, counts = _label_counts(federation, s)
    minor = 2 * counts < counts.max(1, keepdims=True)
    order = np.lexsort((-federation.sizes[:, s], *minor.T[::-1]))
    order = order[federation.sizes[order, s] > 0]
    volume, counts = federation.sizes[order, s], counts[order]
    share = counts / counts.sum(1, keepdims=True)
    figure, ((above, corner), (heat, beside)) = pyplot.subplots(
        2, 2, figsize=(8.4, 6.4), layout="constrained", gridspec_kw={"width_ratios": (4, 1), "height_ratios": (1, 4)}
    )
    corner.set_visible(False)
    figure.suptitle(
        f"{task}: {len(volume):,} clients, {volume.sum():,} of {length(federation.tasks[s].data.y):,} examples"
    )

    _heat_map(heat, share, "part of the client's examples", "Blues", Normalize(0, _runs(share).max()))
    heat.set(xlabel="label", ylabel=_rows_label("clients, by their main labels", len(counts)))
    heat.sharex(above)
    step = -(-len(classes) // _MAX_TICKS)
    heat.set_xticks(range(0, len(classes), step), [str(label) for label in classes[::step]])

    place = np.arange(len(classes))
    above.bar(place, pool, width=0.8, color="none", edgecolor="grey", linewidth=0.8, label="in the data")
    above.bar(place, counts.sum(0), width=0.8, color=COLOURS[0], label="held by clients")
    above.set_ylabel("count")
    above.tick_params(labelbottom=False)
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", frameon=False, ncols=2)

    means = _runs(volume[:, None])[:, 0]
    height = len(counts) / len(means)
    beside.barh((np.arange(len(means)) + 0.5) * height, means, height=height, color=COLOURS[0])
    beside.set(ylim=heat.get_ylim(), xlabel="examples")
    beside.tick_params(labelleft=False)
    if volume.max() > 100 * volume.min():
        beside.set_xscale("log")
    return figure


def draw_volumes(federation: Federation) -> Figure:
    """Client x task heat map of volumes, and the part of each task's examples that its richest clients hold."""
    sizes, names = federation.sizes, federation.task_names
    figure, (heat, curves) = pyplot.subplots(1, 2, figsize=(10.5, 4.6), layout="constrained")
    figure.suptitle(f"{federation.clients:,} clients, {sizes.sum():,} examples")

    held = sizes[np.argsort(-sizes.sum(1), kind="stable")]
    least = sizes[sizes > 0].min()
    most = max(2 * least, sizes.max())
    colours = _heat_map(heat, held, "examples", "viridis_r", LogNorm(least, most))
    colours.set_ticks(np.unique(np.geomspace(least, most, 6).round()).tolist())
    colours.minorticks_off()
    heat.set_xticks(range(len(names)), names, rotation=30, ha="right")
    rows = _rows_label("clients, most examples first", len(sizes))
    heat.set(ylabel=rows, title="examples of each task (white: none)")

    for n, name in enumerate(names):
        volume = np.sort(sizes[sizes[:, n] > 0, n])[::-1]
        part = np.concatenate([[0.0], np.cumsum(volume) / volume.sum()])
        place = np.linspace(0, 1, len(part))
        tenth = np.interp(0.1, place, part)
        colour, dash = style(n)
        label = f"{name}: a tenth holds {tenth:.0%}"
        curves.plot(100 * place, 100 * part, dash, color=colour, linewidth=1.5, label=label)
    curves.plot([0, 100], [0, 100], color="grey", linewidth=0.8)
    curves.set(xlabel="% of the clients, richest first", ylabel="% of the examples", xlim=(0, 100), ylim=(0, 101))
    curves.set_title("how unequal (grey: all equal)")
    curves.grid(alpha=0.3)
    curves.legend(loc="lower right", fontsize="small")
    return figure


def draw(federation: Federation, folder: Path) -> list[Path]:
    """Writes the figures as PNG: `volumes.png`, and `labels-1-NAME.png` for each task whose targets are classes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [save(draw_volumes(federation), folder / "volumes.png")]
        for n, task in enumerate(federation.tasks, start=1):
            if task.data.labels is not None:
                name = re.sub(r"[^\w.-]+", "-", task.name)
                paths.append(save(draw_labels(federation, task.name), folder / f"labels-{n}-{name}.png"))
    except OSError as error:
        raise UserError(f"pictures in '{shorten(folder)}' cannot be written: {error.strerror}.") from None
    return paths


def _label_counts(federation: Federation, s: int) -> tuple[Counts, Counts, Counts]:
    """The labels, how many examples there are of each, [classes], and how many each client has, [clients, classes].

    Where an example has several targets (a text), each of them counts.
    """
    targets, shards = federation.tasks[s].data.labels, federation.shards[s]
    assert targets is not None
    classes, label, pool = np.unique(targets.numpy(), return_inverse=True, return_counts=True)
    label = label.reshape(len(targets), -1)
    client = np.repeat(np.arange(federation.clients), shards.sizes)
    cell = client[:, None] * len(classes) + label[shards.index]
    counts = np.bincount(cell.ravel(), minlength=federation.clients * len(classes))
    return classes, pool, counts.reshape(federation.clients, len(classes))


def _runs(table: NDArray[np.float64] | Counts) -> NDArray[np.float64]:
    """The table, or where it has too many rows to be told apart, the means of runs of neighbouring rows."""
    edges = np.linspace(0, len(table), min(len(table), _MAX_ROWS) + 1).astype(np.int64)
    means: NDArray[np.float64] = np.add.reduceat(table, edges[:-1], axis=0) / np.diff(edges)[:, None]
    return means


def _rows_label(text: str, clients: int) -> str:
    together = -(-clients // _MAX_ROWS)
    return text if together == 1 else f"{text}\n(means of up to {together} neighbours)"


def _heat_map(axes: Axes, table: NDArray[np.float64] | Counts, label: str, cmap: str, norm: Normalize) -> Colorbar:
    """Rows from the top; white where there is nothing."""
    colours = colormaps[cmap].with_extremes(bad="white")
    shown = np.ma.masked_equal(_runs(table), 0)
    extent = (-0.5, table.shape[1] - 0.5, len(table), 0)
    image = axes.imshow(shown, aspect="auto", cmap=colours, norm=norm, interpolation="nearest", extent=extent)
    return axes.figure.colorbar(image, ax=axes, label=label, format="{x:g}")
