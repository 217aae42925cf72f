"""Figures for a browser, drawn by plotly: they zoom, name what is under the pointer, and hide methods on a click."""

from __future__ import annotations

import html
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from mmfl.errors import UserError
from mmfl.report.figure import Bars, Dots, Figure, Heat, Line, Numbers, Panel
from mmfl.report.palette import style

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as PlotlyFigure

COLUMNS = 3
_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
_ROW, _HEAD, _LEGEND_LINE = 300, 60, 22  # pixels


def require_plotly() -> None:
    """Says what to install where plotly is not."""
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise UserError("an HTML report needs plotly; install it with: pip install 'mmfl[report]'") from None


def plotly_script() -> str:
    """plotly.js itself, to be put into a page: nothing is fetched from elsewhere."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def theme(dark: bool = False) -> dict[str, Any]:
    """The colours of paper, ink and grid, as a part of a plotly layout."""
    ink, grid, edge = ("#D8DCE2", "#343A43", "#59616D") if dark else ("#22272E", "#E3E6EA", "#A9B0BA")
    axis = {"gridcolor": grid, "linecolor": edge, "zerolinecolor": grid, "tickcolor": edge}
    hover = {"bgcolor": "#20252C" if dark else "#FFFFFF", "font": {"color": ink}}
    layout = {
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": ink},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": axis,
        "yaxis": axis,
        "hoverlabel": hover,
        "shapedefaults": {"line": {"color": edge}},
    }
    return {"template": {"layout": layout}}


def plotly_of(figure: Figure, dark: bool = False, columns: int = COLUMNS) -> PlotlyFigure:
    """The figure as plotly's, in rows of so many panels, with one legend above."""
    from plotly.subplots import make_subplots

    columns = min(columns, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    made = make_subplots(
        rows,
        columns,
        subplot_titles=[_text(panel.title) for panel in figure.panels],
        horizontal_spacing=0.24 / columns,
        vertical_spacing=0.26 / rows,
    )
    listed: set[str] = set()
    for n, panel in enumerate(figure.panels):
        row, column = n // columns + 1, n % columns + 1
        for trace in (trace for mark in panel.marks for trace in _traces(mark)):
            name = trace.get("legendgroup", "")
            trace["showlegend"] = trace.pop("listed", False) and name not in listed
            listed |= {name} if trace["showlegend"] else set()
            made.add_trace(trace, row, column)
        _dress(made, panel, row, column)
    _place_colour_bars(made)
    legend = -(-len(listed) // (2 * columns)) * _LEGEND_LINE
    made.update_layout(
        height=rows * _ROW + _HEAD + legend,
        margin={"l": 10, "r": 10, "t": _HEAD + legend, "b": 10},
        legend={"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"},
        hovermode="closest",
        **theme(dark),
    )
    made.update_xaxes(automargin=True, showline=True)
    made.update_yaxes(automargin=True, showline=True)
    return made


def _dress(made: PlotlyFigure, panel: Panel, row: int, column: int) -> None:
    """Labels, and the line of reference."""
    made.update_xaxes(title={"text": _text(panel.x_label), "standoff": 4}, row=row, col=column)
    made.update_yaxes(title={"text": _text(panel.y_label), "standoff": 4}, row=row, col=column)
    if panel.reference is not None:
        made.add_hline(panel.reference, line={"width": 1, "color": "#8A9099"}, row=row, col=column)
    if any(isinstance(mark, Heat) for mark in panel.marks):
        made.update_yaxes(autorange="reversed", showgrid=False, row=row, col=column)
        made.update_xaxes(showgrid=False, row=row, col=column)
    if any(isinstance(mark, Bars) for mark in panel.marks):
        made.update_yaxes(autorange="reversed", showgrid=False, row=row, col=column)


def _place_colour_bars(made: PlotlyFigure) -> None:
    """A colour bar beside each heat map instead of all at the figure's edge."""
    for trace in made.select_traces({"type": "heatmap"}):
        across = made.layout["xaxis" + (trace.xaxis or "x")[1:]].domain
        up = made.layout["yaxis" + (trace.yaxis or "y")[1:]].domain
        trace.colorbar.update(
            x=across[1], y=sum(up) / 2, len=up[1] - up[0], thickness=8, xpad=4, ypad=0, outlinewidth=0
        )


@singledispatch
def _traces(mark: object) -> list[dict[str, Any]]:
    raise TypeError(f"{type(mark).__name__} is no mark.")


@_traces.register
def _(mark: Line) -> list[dict[str, Any]]:
    colour, dash = style(mark.group)
    common = {"type": "scatter", "mode": "lines", "name": _text(mark.name), "legendgroup": _text(mark.name)}
    shown = {"line": {"color": colour, "dash": _DASHES[dash], "width": 1.8}, "listed": True}
    traces = [common | {"x": mark.x, "y": _small(mark.y)} | shown]
    if mark.low is not None and mark.high is not None:
        known = np.isfinite(mark.low) & np.isfinite(mark.high)
        around = {
            "x": np.concatenate([mark.x[known], mark.x[known][::-1]]),
            "y": _small(np.concatenate([mark.high[known], mark.low[known][::-1]])),
        }
        band = {"fill": "toself", "fillcolor": colour, "opacity": 0.15, "line": {"width": 0}, "hoverinfo": "skip"}
        traces.insert(0, common | around | band)
    return traces


@_traces.register
def _(mark: Dots) -> list[dict[str, Any]]:
    name = _text(mark.name)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "legendgroup": name,
            "x": _small(mark.x),
            "y": _small(mark.y),
            "text": [_text(label) for label in mark.labels],
            "marker": {"color": style(mark.group)[0], "size": 6, "symbol": mark.group % 7, "opacity": 0.8},
            "listed": True,
        }
    ]


@_traces.register
def _(mark: Bars) -> list[dict[str, Any]]:
    return [
        {
            "type": "bar",
            "orientation": "h",
            "x": _small(mark.values),
            "y": [_text(name) for name in mark.names],
            "marker": {"color": [style(group)[0] for group in mark.groups]},
        }
    ]


@_traces.register
def _(mark: Heat) -> list[dict[str, Any]]:
    trace = {
        "type": "heatmap",
        "z": _small(mark.values),
        "x": [_text(column) for column in mark.columns],
        "customdata": [[_text(row)] * len(mark.columns) for row in mark.rows],
        "hovertemplate": "%{customdata}, %{x}: %{z:.4g}<extra></extra>",
        "zmin": mark.low,
        "zmax": mark.high,
        "colorscale": "RdBu" if mark.low < 0 else "Viridis",
        "colorbar": {"title": {"text": _text(mark.label), "side": "right"}},
    }
    if mark.texts:
        named = {"y": [_text(row) for row in mark.rows], "text": mark.texts, "texttemplate": "%{text}"}
        return [trace | named]
    return [trace]


def _text(text: str) -> str:
    """Plotly reads tags in texts; names are to be shown as they are."""
    return html.escape(text, quote=False)


def _small(values: Numbers) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Seven digits are more than a picture shows, and half the page."""
    return np.asarray(values, dtype=np.float32)
