"""Figure: what a picture shows, whoever draws it.

A figure is panels of marks, and the numbers behind them as a table. `interactive` draws it for a browser, `printed`
for paper, `exports` writes it to files. A mark's `group` picks its colour and dash: a method has the same everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Line:
    """A curve, with a band from `low` to `high` where both are given; nan where nothing was measured."""

    name: str
    x: Numbers
    y: Numbers
    group: int
    low: Numbers | None = None
    high: Numbers | None = None


@dataclass(frozen=True, eq=False)
class Dots:
    """Points of one kind; `labels` name each."""

    name: str
    x: Numbers
    y: Numbers
    group: int
    labels: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Bars:
    """Horizontal bars, a name and a group each, from top to bottom."""

    names: Sequence[str]
    values: Numbers
    groups: Sequence[int]


@dataclass(frozen=True, eq=False)
class Heat:
    """A table [rows, columns] as colours from `low` to `high`; rows from top to bottom.

    `texts` are written into the cells. Row names that are too many to be written are seen where the pointer is.
    """

    values: Numbers
    rows: Sequence[str]
    columns: Sequence[str]
    label: str
    low: float
    high: float
    texts: Sequence[Sequence[str]] = ()


Mark = Line | Dots | Bars | Heat


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on the same axes; `reference` is a value of y worth a thin line, such as that of an unbiased method."""

    title: str
    marks: Sequence[Mark]
    x_label: str = ""
    y_label: str = ""
    reference: float | None = None


@dataclass(frozen=True, eq=False)
class Figure:
    """Panels under one title, with a sentence or two on how to read them. `table` has the numbers, a row each."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    table: pd.DataFrame = field(repr=False)
