"""The one style of all tables on a console."""

from rich import box
from rich.table import Column, Table


def listing(*columns: str) -> Table:
    """An empty table; names, in the first column, stay whole."""
    first = Column(columns[0], no_wrap=True)
    return Table(first, *columns[1:], box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
