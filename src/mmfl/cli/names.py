"""The names that a shell completes, read from the source code of the tables that define them.

To import those tables would import torch, for which nobody who presses the Tab key should wait. A table is looked up
by its name within a room, whichever file of the room it is in.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def methods() -> list[str]:
    """The named methods."""
    return _dict_keys("methods.py", "METHODS")


def data_sources() -> list[str]:
    """The data sets."""
    return _dict_keys("data", "SOURCES")


def trackers() -> list[str]:
    """The trackers that a run can log to."""
    return _dict_keys("trackers", "TRACKERS")


def export_formats() -> list[str]:
    """The file formats of a report's figures."""
    return _dict_keys("report", "FORMATS")


def precisions() -> list[str]:
    """The precisions of matrix products."""
    return _literal_values("engine", "Precision")


def engines() -> list[str]:
    """The ways to train clients."""
    return _literal_values("engine", "Mode")


def reproductions() -> list[str]:
    """The ids of the papers' tables and figures: the first argument of whatever makes one."""
    calls = [
        element
        for statement in _definitions("papers", "REPRODUCTIONS")
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Tuple)
        for element in statement.value.elts
        if isinstance(element, ast.Call)
    ]
    return sorted(str(first.value) for call in calls for first in call.args[:1] if isinstance(first, ast.Constant))


def config_keys(section: str = "Config") -> list[str]:
    """The keys of an experiment's configuration, or of a section of it, by the name of its class."""
    return _class_fields("runs", section)


def deployment_keys() -> list[str]:
    """The keys of a deployment's settings."""
    return _class_fields("deployment", "DeploymentSettings")


def _dict_keys(room: str, name: str) -> list[str]:
    """The keys of a dictionary that is written out: `NAME = {"key": ...}`."""
    value = _assigned_value(room, name)
    keys = value.keys if isinstance(value, ast.Dict) else []
    return [str(key.value) for key in keys if isinstance(key, ast.Constant)]


def _literal_values(room: str, name: str) -> list[str]:
    """The values of a type: `Name = Literal["value", ...]`."""
    return [str(node.value) for node in ast.walk(_assigned_value(room, name)) if isinstance(node, ast.Constant)]


def _class_fields(room: str, name: str) -> list[str]:
    """The annotated fields of a class."""
    definition = next(_definitions(room, name))
    return [
        statement.target.id
        for statement in getattr(definition, "body", [])
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]


def _assigned_value(room: str, name: str) -> ast.expr:
    statement = next(_definitions(room, name))
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    assert statement.value is not None
    return statement.value


def _definitions(room: str, name: str) -> Iterator[ast.stmt]:
    """The statements at the top of a room's files that define a name. Only files that may hold one are parsed."""
    place = _PACKAGE / room
    begins = re.compile(rf"^(class )?{name}\b[^(]*[=:(]", re.MULTILINE)
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        source = path.read_text(encoding="utf-8")
        if begins.search(source):
            yield from (statement for statement in ast.parse(source).body if name in _defined_names(statement))


def _defined_names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []
