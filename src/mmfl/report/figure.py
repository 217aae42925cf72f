"""Figure: what a picture shows, independent of what draws it.

A figure is panels of marks, and the numbers behind them as a table. `interactive` draws it for a browser, `plots`
for paper, `exports` writes it to files. A mark's `group` picks its colour and dash: a method has the same everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
COLUMNS = 3
"""Panels in a row, on paper and on a wide screen."""


@dataclass(frozen=True, eq=False)
class Line:
    """A curve, with a band from `low` to `high` where both are given; a `pale` one is what another is compared to."""

    name: str
    x: Numbers
    y: Numbers
    group: int
    low: Numbers | None = None
    high: Numbers | None = None
    pale: bool = False


@dataclass(frozen=True, eq=False)
class Dots:
    """Points of one kind; `labels` name each."""

    name: str
    x: Numbers
    y: Numbers
    group: int
    labels: Sequence[str]


@dataclass(frozen=True, eq=False)
class Bars:
    """Horizontal bars from top to bottom, each of its own group."""

    names: Sequence[str]
    values: Numbers


@dataclass(frozen=True, eq=False)
class Heat:
    """A table [rows, columns] as colours from `low` to `high`, rows from top to bottom.

    Those of a figure share their scale, and what it measures: `label`. A cell of nan is left blank or, where
    `nothing` says what that means, grey. With `texts`, which are written into the cells, the rows are named too.
    Otherwise they are many, and a browser names the one under the pointer.
    """

    values: Numbers
    rows: Sequence[str]
    columns: Sequence[str]
    label: str
    low: float
    high: float
    texts: Sequence[Sequence[str]] = ()
    nothing: str = ""


Mark = Line | Dots | Bars | Heat


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on the same axes; `reference` is a value of y worth a thin line, such as that of an unbiased method, `log`
    names the axes that are logarithmic."""

    title: str
    marks: Sequence[Mark]
    x_label: str = ""
    y_label: str = ""
    reference: float | None = None
    log: Literal["", "x", "y"] = ""


@dataclass(frozen=True, eq=False)
class Figure:
    """Panels under one title, with a sentence or two on how to read them. `table` has the numbers, a row each."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    table: pd.DataFrame = field(repr=False)

    def columns(self, most: int = COLUMNS) -> int:
        """How many panels go in a row, given how many fit."""
        return 2 if len(self.panels) == 4 and most > 2 else min(most, len(self.panels))

    def parts(self, most: int) -> list["Figure"]:
        """The figure in parts with a limited number of panels, for pages that are too short for all of them."""
        return [replace(self, panels=self.panels[n : n + most]) for n in range(0, len(self.panels), most)]
