"""Writes configuration.md: every key of a configuration, from the models that check it, and all that can be named.

Run it after a change of these: `python docs/reference.py`.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mmfl.aggregation import AGGREGATIONS
from mmfl.allocation import ALLOCATIONS
from mmfl.data import SOURCES
from mmfl.deployment.settings import DeploymentSettings
from mmfl.federation.arrivals import ARRIVALS
from mmfl.federation.availability import AVAILABILITIES
from mmfl.federation.objectives import LOSSES, METRICS
from mmfl.federation.schedules import SCHEDULES
from mmfl.local import LOCAL_RULES
from mmfl.methods import METHODS
from mmfl.models import MODELS
from mmfl.partition import PARTITIONS, SIZES
from mmfl.runs.config_schema import Config, FederationConfig, PrivacyConfig, TaskConfig
from mmfl.trackers import TRACKERS

PAGE = Path(__file__).parent / "configuration.md"
PLAIN = (str, bool, int, float, list, tuple)  # what TOML can hold; other defaults are not shown

ABOUT = """# Configuration

A configuration is a TOML file that says everything about an experiment; every run writes the complete one into its
directory. [examples/demo.toml](../examples/demo.toml) is the embedded default. `mmfl run FILE --set KEY=VALUE` changes
single values: `--set rounds=50`, `--set federation.clients=40`, `--set tasks.digits.lr=0.1` (a task by its name or
number).

Where a key takes *a name*, it is one of the names [below](#what-can-be-named) or a dotted path into your own Python,
`my_module.Thing`. Where it takes *a name or table*, options go by keyword: `{ name = "labels", fraction = 0.3 }`.

This page is written by `python docs/reference.py` from the code that checks configurations."""

SECTIONS: dict[str, tuple[str, type[BaseModel]]] = {
    "The experiment": ("Keys at the top of the file.", Config),
    "`[[tasks]]`": ("One table for each model to train.", TaskConfig),
    "`[federation]`": ("The clients and who holds what.", FederationConfig),
    "`[privacy]`": ("What is done to an update before it leaves its client; see [privacy](privacy.md).", PrivacyConfig),
    "A deployment's settings": (
        "Given to `mmfl deploy` by options or as `--set KEY=VALUE`; see [deployment](deployment.md).",
        DeploymentSettings,
    ),
}
NAMES: dict[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    "Data": ("`data` of a task; what each needs is told in [data](data.md).", SOURCES),
    "Models": ("`model` of a task.", MODELS),
    "Losses": ("`loss` of a task.", LOSSES),
    "Metrics": ("`metric` of a task.", METRICS),
    "Schedules": ("`lr` or `batch_size` of a task, as a table.", SCHEDULES),
    "Partitions": (
        "`partition` of a task or of the federation. In a file `shared = true` takes the place of `seed`: what a "
        "client is like is then the same for every task.",
        PARTITIONS,
    ),
    "Sizes": ("`sizes` of a partition: a name, a table, a number or a list of them.", SIZES),
    "Arrivals": ("`arrivals` of the federation.", ARRIVALS),
    "Availability": ("`availability` of the federation.", AVAILABILITIES),
    "Methods": (
        'Entries of `methods`, with options as `{ method = "fedstale", beta = 0.2 }`; [methods](methods/README.md) '
        "tells what each does.",
        {name: entry.make for name, entry in METHODS.items()},
    ),
    "Allocations": ('`allocation` of a table of parts: `{ name = "mine", allocation = ..., ... }`.', ALLOCATIONS),
    "Local rules": ("`local` of a table of parts; SGD without it.", LOCAL_RULES),
    "Aggregations": ("`aggregation` of a table of parts.", AGGREGATIONS),
    "Trackers": ("Entries of `trackers`; what each writes is told in [trackers](trackers.md).", TRACKERS),
}


def page() -> str:
    """The text of configuration.md."""
    parts = [ABOUT]
    for title, (about, model) in SECTIONS.items():
        parts += [f"## {title}", about, _table(["key", "type", "default", "meaning", "example"], _keys(model))]
    parts.append("## What can be named")
    for title, (about, known) in NAMES.items():
        rows = ([f"`{name}`", _options(make), _summary(title, name, make)] for name, make in known.items())
        parts += [f"### {title}", about, _table(["name", "options", ""], rows)]
    return "\n\n".join(parts) + "\n"


def _keys(model: type[BaseModel]) -> Iterator[list[str]]:
    for name, field in model.model_fields.items():
        meaning = " ".join((field.description or "").split())
        examples = ", ".join(f"`{toml(example)}`" for example in field.examples or [])
        yield [f"`{name}`", kind(field.annotation), _default(field), meaning, examples]


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    return "" if default is None or isinstance(default, BaseModel) else f"`{toml(default)}`"


def kind(annotation: Any) -> str:
    """A type in the words of someone who writes TOML.

    >>> kind(int | list[int])
    'whole number, or list of whole numbers'
    """
    if get_origin(annotation) is Literal:
        return ", ".join(f'`"{choice}"`' for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        given = [part for part in get_args(annotation) if part is not type(None)]
        spec = str in given and any(get_origin(part) is dict for part in given)
        others = [kind(part) for part in given if not (spec and (part is str or get_origin(part) is dict))]
        return ", or ".join([*others, *(["name or table"] if spec else [])])
    if get_origin(annotation) is list:
        inner = get_args(annotation)[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return "tables"
        return "list of " + {"name or table": "names or tables"}.get(kind(inner), f"{kind(inner)}s")
    if get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "table"
    return {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}[annotation]


def toml(value: Any) -> str:
    """A value as TOML writes it, on one line.

    >>> toml({"name": "labels", "fraction": 0.3})
    '{ name = "labels", fraction = 0.3 }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml(entry)}" for key, entry in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def _options(make: Callable[..., Any]) -> str:
    """What can be given by keyword, with defaults."""
    given = {} if make in (*LOSSES.values(), *METRICS.values()) else inspect.signature(make).parameters
    return ", ".join(map(_option, given.values()))


def _option(option: inspect.Parameter) -> str:
    if option.default is option.empty:
        return f"`{option.name}` (required)"
    default = getattr(option.default, "__name__", option.default)  # a function by its name
    return f"`{option.name} = {toml(default)}`" if isinstance(default, PLAIN) else f"`{option.name}`"


def _summary(title: str, name: str, make: Callable[..., Any]) -> str:
    if title == "Methods":
        return METHODS[name].summary
    return (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


if __name__ == "__main__":
    PAGE.write_text(page())
