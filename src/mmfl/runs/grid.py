"""Grids: the values of settings that a sweep tries, the points that follow from them, and what these are called."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from mmfl.errors import UserError, shorten
from mmfl.runs.config import read_value

MAX_RUNS = 10_000
"""Runs of a sweep, points x methods x seeds; a grid with more is most likely a mistake."""
Grid = Mapping[str, Sequence[Any]]
"""The values to try, by the key of their setting."""
_GIVEN_APART = {"method": "methods", "methods": "methods", "seed": "seeds", "seeds": "seeds"}


def read_grid(settings: Sequence[str]) -> dict[str, list[Any]]:
    """The grid that texts such as `rate=0.1,0.2` describe. Values are read as `--set` does; a comma between brackets or
    quotes belongs to the value.

    >>> read_grid(["rate=0.1,0.2", "federation.capacity=mixed,[1, 2]"])
    {'rate': [0.1, 0.2], 'federation.capacity': ['mixed', [1, 2]]}
    """
    grid: dict[str, list[Any]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"--grid {setting}: expected key=value,value, such as rate=0.1,0.2.")
        if key in grid:
            raise UserError(f"--grid {setting}: '{key}' is given twice; expected all its values in one list.")
        values = list(_split(text)) if text.strip() else []
        if not all(values):
            raise UserError(f"--grid {setting}: a value is empty; expected values between the commas.")
        grid[key] = [read_value(value) for value in values]
    check_grid(grid)
    return grid


def _split(text: str) -> Iterator[str]:
    """The parts between commas, of which those between brackets or quotes do not count."""
    part = ""
    for piece in text.split(","):
        part = f"{part},{piece}" if part else piece
        opened, closed = (sum(map(part.count, brackets)) for brackets in ("[{", "]}"))
        if opened <= closed and part.count('"') % 2 == 0:
            yield part.strip()
            part = ""
    if part:
        yield part.strip()


def check_grid(grid: Grid) -> None:
    """Refuses a grid without keys or values, one that repeats a value, and keys that are given in another way."""
    if not isinstance(grid, Mapping):
        expected = 'expected a dictionary from keys to values, such as {"rate": [0.1, 0.2]}'
        raise UserError(f"sweep: the grid is {shorten(repr(grid))}; {expected}.")
    if not grid:
        raise UserError("sweep: the grid is empty; expected keys with values to try, such as rate=0.1,0.2.")
    for key, values in grid.items():
        if not isinstance(key, str) or not key:
            raise UserError(f"sweep: the grid has the key {shorten(repr(key))}; expected the name of a setting.")
        if key in _GIVEN_APART:
            other = _GIVEN_APART[key]
            raise UserError(f"sweep: '{key}' cannot be a key of the grid; expected --{other} (in Python: {other}).")
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
            raise UserError(f"sweep: the grid has {shorten(repr(values))} for '{key}'; expected a list of values.")
        if not len(values):
            raise UserError(f"sweep: the grid has no values for '{key}'; expected at least one.")
        texts = [text_of(value) for value in values]
        repeated = next((text for n, text in enumerate(texts) if text in texts[:n]), None)
        if repeated is not None:
            raise UserError(f"sweep: the grid repeats {shorten(repeated)} for '{key}'; each value may be given once.")


def check_size(grid: Grid, methods: int, seeds: int) -> int:
    """The number of runs; an error where there are none, or more than a sweep can be meant to have."""
    for name, number in (("methods", methods), ("seeds", seeds)):
        if not number:
            raise UserError(f"no {name} given; expected at least one.")
    count = math.prod(len(values) for values in grid.values())
    runs = count * methods * seeds
    if runs > MAX_RUNS:
        size = describe_size(count, methods, seeds)
        raise UserError(f"sweep: the grid has {size}; expected at most {MAX_RUNS:,}.")
    return runs


def describe_size(points: int, methods: int, seeds: int) -> str:
    """How many runs there are, and why.

    >>> describe_size(6, 1, 3)
    '6 points x 1 method x 3 seeds = 18 runs'
    """
    counts = {"point": points, "method": methods, "seed": seeds}
    factors = [f"{number:,} {word}{'s' if number > 1 else ''}" for word, number in counts.items()]
    return f"{' x '.join(factors)} = {points * methods * seeds:,} runs"


def points(grid: Grid) -> list[dict[str, Any]]:
    """Every combination of values; the last key changes fastest."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ends that tell keys apart.

    >>> short_names(["rate", "tasks.digits.lr", "tasks.faces.lr"])
    {'rate': 'rate', 'tasks.digits.lr': 'digits.lr', 'tasks.faces.lr': 'faces.lr'}
    """
    ends = {key: [".".join(key.split(".")[n:]) for n in reversed(range(key.count(".") + 1))] for key in keys}
    every = [end for key in keys for end in ends[key]]
    return {key: next((end for end in ends[key] if every.count(end) == 1), key) for key in keys}


def text_of(value: Any) -> str:
    """A value on one line: as it is typed, or the name of a class or function.

    >>> text_of(0.1), text_of("mixed"), text_of({"name": "iid"}), text_of(True)
    ('0.1', 'mixed', '{"name": "iid"}', 'true')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    return getattr(value, "__name__", None) or json.dumps(value, default=str)


def describe(point: Mapping[str, Any]) -> str:
    """A point in short.

    >>> describe({"tasks.digits.lr": 0.1, "rate": 0.2})
    'lr=0.1, rate=0.2'
    """
    names = short_names(list(point))
    return ", ".join(f"{names[key]}={text_of(value)}" for key, value in point.items())


def label_of(method: str, point: Mapping[str, Any]) -> str:
    """What a method is called at a point, in records and tables of runs: `random (lr=0.1, rate=0.2)`."""
    return f"{method} ({describe(point)})"
