"""Configurations: TOML files, presets and `key=value` settings, read and checked."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.runs.config_schema import Config
from mmfl.runs.config_sections import SECTIONS
from mmfl.runs.layout import format_problem
from mmfl.runs.presets import NAMES, find, path_of

EMBEDDED = path_of("demo")
_TYPES = re.compile(r"str|int|float|(list|dict)\[.*\]")  # of values that may be of several


def read(path: str | Path | None, settings: Sequence[str] = (), **overrides: Any) -> Config:
    """The configuration in a file or preset (the embedded default without one), changed by `key=value` settings and
    overrides."""
    path = EMBEDDED if path is None else find(path)
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        near = nearest(path.stem, NAMES)
        raise UserError(f"configuration '{path}' does not exist, as a TOML file or as a preset: {near}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"configuration '{path}' cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"configuration '{path}' is not valid TOML: {error}.") from None
    if path.parent != EMBEDDED.parent:
        values.setdefault("python_path", str(path.resolve().parent))
    for setting in settings:
        apply(values, setting)
    for key, value in overrides.items():
        if value is not None:
            _assign(values, key, value)
    return parse(values, source_of(path))


def source_of(path: str | Path | None) -> str:
    """What a configuration is called in errors."""
    return "the embedded default" if path is None or find(path) == EMBEDDED else str(find(path))


def preset(name: str, seed: int = 0, settings: Sequence[str] = ()) -> Federation:
    """The federation of a paper, by the name of its preset (`mmfl datasets` lists them), changed by `key=value`
    settings as on the command line.

    >>> preset("quadratic", settings=["federation.capacity=2"])
    Federation(24 clients, tasks: copy-a, copy-b)
    """
    if name not in NAMES:
        raise UserError(f"unknown preset '{name}': {nearest(name, NAMES)}")
    return read(path_of(name), settings).experiment().federation_of(seed)


def apply(values: dict[str, Any], setting: str) -> None:
    """Changes one value: `rounds=50`, `federation.clients=40`, `tasks.digits.lr=0.1` (a task by name or number)."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {setting}: expected key=value, such as rounds=50.")
    assign(values, key.strip(), read_value(text), f"--set {setting}")


def read_value(text: str) -> Any:
    """A value as TOML writes it; anything else is text.

    >>> read_value("0.5"), read_value("[1, 2]"), read_value("mmfl-lvr")
    (0.5, [1, 2], 'mmfl-lvr')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def assign(values: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Sets the value at a key such as `tasks.digits.lr`; `where` begins the message of an error."""
    *path, last = key.split(".")
    place: Any = values
    for before, step in zip(["", *path], path, strict=False):
        place = _into(place, step, "method" if before == "methods" else "name", where)
    if isinstance(place, list):
        raise UserError(f"{where}: '{'.'.join(path)}' is a list; name one of its entries.")
    _assign(place, last, value)


def _assign(place: dict[str, Any], key: str, value: Any) -> None:
    """Sets a value; `method` and `methods` are two names of one, so either replaces both."""
    if key in ("method", "methods"):
        place.pop("method", None)
        place.pop("methods", None)
    place[key] = value


def _into(place: Any, step: str, named_by: str, where: str) -> Any:
    """The table or list at a step of a key. A name becomes a table with that name, so that it can have options:
    `tasks.digits.data.seed=1`, `methods.fedstale.beta=0.2`."""
    if isinstance(place, list):
        names = [_name_of(entry, n) for n, entry in enumerate(place)]
        if step not in names and not (step.isdigit() and int(step) < len(place)):
            raise UserError(f"{where}: no entry '{step}': {nearest(step, names)}")
        at: Any = names.index(step) if step in names else int(step)
    else:
        at = step
        place.setdefault(step, {})
    if isinstance(place[at], str):
        place[at] = {named_by: place[at]}
    if not isinstance(place[at], dict | list):
        raise UserError(f"{where}: '{step}' is a single value.")
    return place[at]


def _name_of(entry: Any, number: int) -> str:
    """What an entry of a list goes by: a task by its name, a method by its name or that of the method it is."""
    if isinstance(entry, Mapping):
        return str(entry.get("name", entry.get("method", number)))
    return entry if isinstance(entry, str) else str(number)


def parse(values: dict[str, Any], source: str) -> Config:
    """Checks values against the model; the first mistake is named with its place and what was expected."""
    if problem := format_problem(values):
        raise UserError(f"{source} cannot be read: {problem}.")
    try:
        return Config.model_validate(values).with_source(source)
    except ValidationError as error:
        first = error.errors()[0]
        where = _place(first["loc"], first["type"], values)
        if first["type"] == "extra_forbidden":
            section = SECTIONS.get(str(first["loc"][0]), Config)
            known = [*section.model_fields, *(["method"] if section is Config else [])]
            raise UserError(f"{source}: unknown key '{where}': {nearest(str(first['loc'][-1]), known)}") from None
        if first["type"] == "missing":
            raise UserError(f"{source}: '{where}' is missing.") from None
        given, expected = repr(first["input"]), first["msg"]
        given = given if len(given) < 60 else given[:57] + "..."
        raise UserError(f"{source}: '{where}' is {given}: {expected[:1].lower()}{expected[1:]}.") from None


def _place(location: tuple[Any, ...], mistake: str, values: Mapping[str, Any]) -> str:
    """Where a mistake is, as --set would name it: a task by its name, and without the types that were tried there."""
    names_key = mistake in ("extra_forbidden", "missing")  # which may be called like a type
    keys = [part for part in location[:-1] if not _TYPES.fullmatch(str(part))]
    keys += [part for part in location[-1:] if names_key or not _TYPES.fullmatch(str(part))]
    match keys:
        case ["tasks", int(number), *_]:
            task = values["tasks"][number]
            name = task.get("name") if isinstance(task, Mapping) else None
            if isinstance(name, str) and name and "." not in name:
                keys[1] = name
    return ".".join(map(str, keys))
