"""What the names and tables of a configuration stand for: data, models, partitions."""

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from mmfl.data import SOURCES, Dataset
from mmfl.errors import UserError, first_line
from mmfl.models import MODELS
from mmfl.partition import PARTITIONS, SIZES, Partition
from mmfl.registry import build, call, find, read_spec

Spec = str | dict[str, Any]
"""A name or dotted path, or a table with `name` and options."""


def build_named(kind: str, value: Any, known: Mapping[str, Any]) -> Any:
    """What a name or a table stands for; anything else as it is, such as a number in place of a schedule."""
    return build(kind, value, known) if isinstance(value, str | Mapping) else value


def load_data(spec: Spec) -> Dataset:
    """The data that a spec names. Where a function of the user's fails, the error says on which line."""
    try:
        data = build("data", spec, SOURCES)
    except UserError:
        raise
    except Exception as error:
        name, _ = read_spec("data", spec)
        if name in SOURCES:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{Path(place.filename).name}, line {place.lineno}"
        raise UserError(f"data '{name}' fails: {type(error).__name__}: {first_line(error)} ({line}).") from None
    if not isinstance(data, Dataset):
        raise UserError(f"data {spec!r} gives a {type(data).__name__}; expected an mmfl data set.")
    return data


def make_model(spec: Spec) -> Callable[[], nn.Module]:
    """A function that makes a new network; one is made now, so that a wrong option is named before training."""
    name, options = read_spec("model", spec)
    factory = find("model", name, MODELS)
    if isinstance(factory, nn.Module):
        kind = type(factory).__name__
        raise UserError(f"model '{name}' is an instance of {kind}; expected a class or a function that returns one.")
    call("model", name, factory, options)
    return partial(factory, **options)


def make_partition(spec: Spec, seed: int) -> Partition:
    """A partition; its `sizes` may be a table of its own. `shared = true`: what a client is like is the same for every
    task, drawn from the federation's seed."""
    name, options = read_spec("partition", spec)
    if isinstance(options.get("sizes"), Mapping | str):
        sizes, settings = read_spec("sizes", options["sizes"])
        options["sizes"] = call("sizes", sizes, find("sizes", sizes, SIZES), _with_shared_seed(settings, seed))
    made: Partition = call("partition", name, find("partition", name, PARTITIONS), _with_shared_seed(options, seed))
    return made


def _with_shared_seed(options: dict[str, Any], seed: int) -> dict[str, Any]:
    return {**options, "seed": seed} if options.pop("shared", False) else options
