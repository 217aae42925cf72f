"""Marks as traces of plotly.js."""

import base64
import html
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mmfl.report.figure import Bars, Dots, Heat, Line
from mmfl.report.palette import DIVERGING, NOTHING, ink, style

_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
_DIVERGING = [[n / (len(DIVERGING) - 1), colour] for n, colour in enumerate(DIVERGING)]


@singledispatch
def traces(mark: object) -> Iterator[dict[str, Any]]:
    """The mark as traces of plotly, with the name under which the legend lists it."""
    raise TypeError(f"{type(mark).__name__} is no mark.")


@traces.register
def _(mark: Line) -> Iterator[dict[str, Any]]:
    colour, dash = style(mark.group)
    common = {"type": "scatter", "mode": "lines", "name": text_of(mark.name), "legendgroup": text_of(mark.name)}
    if mark.low is not None and mark.high is not None:
        yield common | {
            "x": _array(np.concatenate([mark.x, mark.x[::-1]])),
            "y": _array(np.concatenate([mark.high, mark.low[::-1]])),
            "fill": "toself",
            "fillcolor": colour,
            "opacity": 0.15,
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
    alone = len(mark.x) == 1
    yield common | {
        "x": _array(mark.x),
        "y": _array(mark.y),
        "mode": "markers" if alone else "lines",
        "line": {"color": colour, "dash": _DASHES[dash], "width": 1.8},
        "marker": {"color": colour},
        **({"opacity": 0.4} if mark.pale else {}),
        "hovertemplate": "%{fullData.name}, %{x}: %{y:.4g}<extra></extra>",
        "listed": mark.name,
    }


@traces.register
def _(mark: Dots) -> Iterator[dict[str, Any]]:
    yield {
        "type": "scatter",
        "mode": "markers",
        "name": text_of(mark.name),
        "legendgroup": text_of(mark.name),
        "x": _array(mark.x),
        "y": _array(mark.y),
        "text": [text_of(label) for label in mark.labels],
        "hovertemplate": "%{text}, %{fullData.name}<extra></extra>",
        "marker": {"color": style(mark.group)[0], "size": 7, "symbol": mark.group % 8, "opacity": 0.8},
        "listed": mark.name,
    }


@traces.register
def _(mark: Bars) -> Iterator[dict[str, Any]]:
    yield {
        "type": "bar",
        "orientation": "h",
        "x": _array(mark.values),
        "y": [text_of(name) for name in mark.names],
        "text": [f"{value:,.4g}" for value in mark.values],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{x:,.4g}<extra></extra>",
        "marker": {"color": [style(group)[0] for group in range(len(mark.names))]},
    }


@traces.register
def _(mark: Heat) -> Iterator[dict[str, Any]]:
    common: dict[str, Any] = {
        "type": "heatmap",
        "x": [text_of(column) for column in mark.columns],
        "customdata": [[text_of(row)] * len(mark.columns) for row in mark.rows],
        "hoverongaps": False,
    }
    blank = np.isnan(mark.values)
    if mark.nothing and blank.any():
        yield common | {
            "z": _array(np.where(blank, 0.0, np.nan)),
            "hovertemplate": f"%{{customdata}}, %{{x}}: {text_of(mark.nothing)}<extra></extra>",
            "colorscale": [[0, NOTHING], [1, NOTHING]],
            "showscale": False,
        }
    common |= {
        "hovertemplate": f"%{{customdata}}, %{{x}}: %{{z:.4g}} {text_of(mark.label)}<extra></extra>",
        "coloraxis": "coloraxis",
    }
    if not mark.texts:
        yield common | {"z": _array(mark.values)}
        return
    shares = (np.where(blank, 0.0, mark.values) - mark.low) / (mark.high - mark.low)
    inks = np.vectorize(ink, otypes=[str])(shares, mark.low < 0)
    for colour in np.unique(inks[~blank]):  # a trace has one colour of texts
        subset = (inks == colour) & ~blank
        yield common | {
            "z": _array(np.where(subset, mark.values, np.nan)),
            "y": [text_of(row) for row in mark.rows],
            "text": np.where(subset, np.array(mark.texts), "").tolist(),
            "texttemplate": "%{text}",
            "textfont": {"color": str(colour)},
        }


def colour_axis(mark: Heat) -> dict[str, Any]:
    """The scale of a figure's heat maps, with a bar that says what it measures."""
    title = {"text": text_of(mark.label), "side": "right"}
    return {
        "cmin": mark.low,
        "cmax": mark.high,
        "colorscale": _DIVERGING if mark.low < 0 else "Viridis",
        "colorbar": {"thickness": 10, "xpad": 8, "ypad": 0, "outlinewidth": 0, "nticks": 6, "title": title},
    }


def text_of(text: str) -> str:
    """Plotly reads tags in texts; names are to be shown as they are."""
    return html.escape(text, quote=False)


def _array(values: ArrayLike) -> dict[str, str]:
    """Numbers in the form that plotly.js reads fastest; float32 is enough for a picture, and halves the page."""
    array = np.ascontiguousarray(values, dtype="<f4")
    shape = {"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {}
    return {"dtype": "f4", "bdata": base64.b64encode(array.tobytes()).decode(), **shape}
