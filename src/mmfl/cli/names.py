"""The names that a shell completes, read from the source code of the tables that define them.

To import those tables would import torch, for which nobody who presses the Tab key should wait.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def names_in(room: str, table: str) -> list[str]:
    """The names in a table of a room, whichever file of the room it is in.

    A table is a dictionary with these keys, a `Literal` of these values, a class with these fields, or a tuple of calls
    that have the name as their first argument.
    """
    place = _PACKAGE / room
    begins = re.compile(rf"^(class )?{table}\b[^(]*[=:(]", re.MULTILINE)
    found: list[str] = []
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        source = path.read_text(encoding="utf-8")
        if begins.search(source):  # only then is it worth parsing
            found += [name for each in ast.parse(source).body if _defines(each, table) for name in _names(each)]
    return found


def _defines(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.ClassDef(name=defined) | ast.AnnAssign(target=ast.Name(id=defined)):
            return defined == name
        case ast.Assign(targets=[ast.Name(id=defined)]):
            return defined == name
    return False


def _names(statement: ast.stmt) -> list[str]:
    match getattr(statement, "value", statement):
        case ast.ClassDef(body=body):
            fields = [each.target for each in body if isinstance(each, ast.AnnAssign)]
            return [field.id for field in fields if isinstance(field, ast.Name)]
        case ast.Dict(keys=keys):
            return _texts(keys)
        case ast.Tuple(elts=calls):
            return _texts(call.args[0] for call in calls if isinstance(call, ast.Call))
        case value:
            return _texts(ast.walk(value))


def _texts(nodes: Iterable[ast.AST | None]) -> list[str]:
    return [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
