"""Figures for a browser, drawn by plotly.js: they zoom, name what is under the pointer, and hide methods on a click."""

from collections.abc import Collection, Sequence
from importlib import util
from typing import Any

import numpy as np

from mmfl.errors import UserError
from mmfl.report.figure import COLUMNS, Bars, Dots, Figure, Heat, Line, Mark, Numbers, Panel
from mmfl.report.traces import colour_axis, text_of, traces

_WIDTH = 1000  # pixels, for which room is divided; a browser stretches it
_ROW, _TITLE, _AXIS, _LEGEND = 200, 26, 46, 20  # pixels: a panel, its title, its axis below, a line of the legend
_GAP, _CELL, _BAR = 66, 20, 15
Span = tuple[float, float]
"""From where to where, as shares of a plot's width or height."""


def is_installed() -> bool:
    """Whether plotly is here, which brings plotly.js along."""
    return util.find_spec("plotly") is not None


def require_plotly() -> None:
    """Says what to install where plotly is not."""
    if not is_installed():
        raise UserError("figures in a browser need plotly; install it with: pip install 'mmfl[report]'")


def plotly_script() -> str:
    """plotly.js itself, to be put into a page: nothing is fetched from elsewhere."""
    require_plotly()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def theme(dark: bool = False) -> dict[str, Any]:
    """The colours of paper, ink and grid: plotly's `layout.template`."""
    ink, grid, edge = ("#D8DCE2", "#343A43", "#59616D") if dark else ("#22272E", "#E3E6EA", "#A9B0BA")
    axis = {"gridcolor": grid, "linecolor": edge, "tickcolor": edge, "zeroline": False, "showline": True}
    return {
        "layout": {
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"bgcolor": "#20252C" if dark else "#FFFFFF", "font": {"color": ink}},
        }
    }


def spec_of(figure: Figure, dark: bool = False, columns: int = COLUMNS) -> dict[str, Any]:
    """The figure as plotly.js takes it, `data` and `layout`: plain values, ready for JSON. It is in rows of at most so
    many panels, with one legend above."""
    width = _WIDTH * columns // COLUMNS  # pages that have room for fewer columns are narrower
    columns = figure.columns(columns)
    rows = -(-len(figure.panels) // columns)
    marks = [mark for panel in figure.panels for mark in panel.marks]
    top = _legend_height({mark.name for mark in marks if isinstance(mark, Line | Dots)}, width)
    height = max([_ROW, *map(_least_height, marks)])
    area = rows * (height + _TITLE) + (rows - 1) * _AXIS
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": top + area + _AXIS,
        "margin": {"l": 20, "r": 10, "t": top, "b": _AXIS},
        "legend": {"orientation": "h", "x": 0, "y": 1, "xref": "container", "yref": "container", "yanchor": "top"},
        "hovermode": "closest",
        "bargap": 0.25,
        "template": theme(dark),
        "annotations": [],
        "shapes": [],
    }
    if heats := [mark for mark in marks if isinstance(mark, Heat)]:
        layout["coloraxis"] = colour_axis(heats[0])  # beside the first row
        layout["coloraxis"]["colorbar"] |= {"x": 1, "y": 1 - _TITLE / area, "yanchor": "top", "len": height / area}
    listed: set[str] = set()
    for n, panel in enumerate(figure.panels):
        row, column = divmod(n, columns)
        left = column * (1 + _GAP / width) / columns
        across = (left, left + (1 + _GAP / width) / columns - _GAP / width)
        ceiling = 1 - row * (height + _TITLE + _AXIS) / area
        up = (ceiling - (height + _TITLE) / area, ceiling - _TITLE / area)
        _place(layout, panel, n, across, (max(up[0], 0.0), up[1]), first=column == 0)
        for trace in (trace for mark in panel.marks for trace in traces(mark)):
            trace["xaxis"], trace["yaxis"] = _axis("x", n), _axis("y", n)
            name = trace.pop("listed", "")
            trace["showlegend"] = bool(name) and name not in listed
            listed.add(name)
            data.append(trace)
    return {"data": data, "layout": layout}


def _place(layout: dict[str, Any], panel: Panel, n: int, across: Span, up: Span, first: bool) -> None:
    """The n-th panel's axes, title and line of reference; `first` in its row names what is beside bars and cells."""
    x: dict[str, Any] = {"domain": across, "anchor": _axis("y", n), "automargin": True}
    y: dict[str, Any] = {"domain": up, "anchor": _axis("x", n), "automargin": True}
    x["title"], y["title"] = ({"text": text_of(label), "standoff": 4} for label in (panel.x_label, panel.y_label))
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    if panel.log == "x":
        x |= _logarithmic([line.x for line in lines])
    if panel.log == "y":
        y |= _logarithmic([edge for line in lines for edge in (line.y, line.low, line.high)])
    if heats := [mark for mark in panel.marks if isinstance(mark, Heat)]:
        x |= {"showgrid": False, "type": "category"}
        y |= {"showgrid": False, "autorange": "reversed", "showticklabels": first}
        y |= {"type": "category"} if heats[0].texts else {}  # the rows are named, maybe by numbers
        y["title"] = y["title"] if first else {}
    if bars := [mark for mark in panel.marks if isinstance(mark, Bars)]:
        x |= {"range": [0, 1.25 * max(max(mark.values) for mark in bars)]}  # room for the texts beside them
        y |= {"showgrid": False, "autorange": "reversed", "type": "category", "showticklabels": first}
    layout["xaxis" + _axis("x", n)[1:]], layout["yaxis" + _axis("y", n)[1:]] = x, y
    if panel.title:
        title: dict[str, Any] = {"text": text_of(panel.title), "font": {"size": 13}, "showarrow": False}
        title |= {"xref": "paper", "x": sum(across) / 2, "xanchor": "center"}
        title |= {"yref": "paper", "y": up[1], "yanchor": "bottom"}
        layout["annotations"].append(title)
    if panel.reference is not None:
        shape: dict[str, Any] = {"type": "line", "layer": "below", "line": {"width": 1, "color": "#8A9099"}}
        shape |= {"xref": f"{_axis('x', n)} domain", "x0": 0, "x1": 1}
        shape |= {"yref": _axis("y", n), "y0": panel.reference, "y1": panel.reference}
        layout["shapes"].append(shape)


def _least_height(mark: Mark) -> int:
    """Pixels that a mark needs for what is written in or beside it."""
    if isinstance(mark, Heat) and mark.texts:
        return _CELL * len(mark.rows)
    return _BAR * len(mark.names) if isinstance(mark, Bars) else 0


def _legend_height(names: Collection[str], width: int) -> int:
    """Pixels for a legend of these names."""
    length = sum(48 + 7 * len(name) for name in names)
    return -(-length // (width - 100)) * _LEGEND + 10 if names else 4


def _logarithmic(edges: Sequence[Numbers | None]) -> dict[str, Any]:
    """A logarithmic axis, with ticks at 1, 2 and 5 where it has few decades."""
    values = np.concatenate([edge[edge > 0] for edge in edges if edge is not None])
    few = values.max(initial=1.0) < 1e3 * values.min(initial=1.0)
    return {"type": "log", "dtick": "D2" if few else 1}


def _axis(letter: str, n: int) -> str:
    """What plotly calls the n-th axis: x, x2, x3."""
    return letter + (str(n + 1) if n else "")
