"""What completes an argument or the value of an option, and how the shells' scripts ask for it."""

import ast
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import typer
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from mmfl.runs import presets
from mmfl.runs.layout import CONFIG, is_sweep

_PACKAGE = Path(__file__).parents[1]


@add_completion_class
class LineCompletion(ShellComplete):
    """Answers the scripts in scripts/: one candidate a line, followed by a tab and its help.

    A script sets `_MMFL_COMPLETE=complete_lines`, and `_MMFL_LINE` to the line that was typed, up to the cursor.
    """

    name = "lines"

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is being typed, and that one."""
        line = os.environ.get("_MMFL_LINE", "")
        words = split_arg_string(line)[1:]
        return (words[:-1], words[-1]) if words and not line.endswith(" ") else (words, "")

    def format_completion(self, item: CompletionItem) -> str:
        """One candidate."""
        help_text = re.sub(r"\s", " ", item.help or "")
        return f"{item.value}\t{help_text}" if help_text else str(item.value)


def use_our_scripts() -> None:
    """Lets `--install-completion` and `--show-completion` use the scripts in scripts/ in place of typer's.

    Typer's scripts put a blank after `rounds=` and `runs/`, and do not know that bash ends a word at "=". Typer has no
    public way to replace them; so this is called only where one of the two options is given.
    """
    from typer import _completion_shared

    for path in (Path(__file__).parent / "scripts").iterdir():
        _completion_shared._completion_scripts[path.suffix[1:]] = path.read_text().replace("%", "%%")


def _names_of(room: str, table: str) -> Callable[[], list[str]]:
    """Completes the names in a table."""

    def complete() -> list[str]:
        return names_in(room, table)

    return complete


def _several(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Completes names that are separated by commas, each at most once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name not in before.split(",")]

    return complete


method = _names_of("methods.py", "METHODS")
methods = _several(method)
weights = _names_of("runs", "WEIGHTS")
precisions = _names_of("engine", "Precision")
trackers = _names_of("trackers", "TRACKERS")
exports = _several(_names_of("report", "FORMATS"))


def reproductions() -> list[str]:
    """Tables and figures of the papers."""
    return sorted(names_in("papers", "REPRODUCTIONS"))


def devices() -> list[str]:
    """Devices to compute on."""
    return ["cpu", "cuda"]


_VALUES: dict[str, Callable[[], list[str]]] = {
    "method": method,
    "engine": _names_of("engine", "Mode"),
    "precision": precisions,
    "device": devices,
    "diagnose": lambda: ["true", "false"],
    "data": _names_of("data", "SOURCES"),
}


def configurations(incomplete: str) -> list[str]:
    """Presets and TOML files."""
    return [*presets.NAMES, *_paths(incomplete, lambda path: path.suffix == ".toml")]


def modules(incomplete: str) -> list[str]:
    """Python files."""
    return _paths(incomplete, lambda path: path.suffix == ".py")


def runs(incomplete: str) -> list[str]:
    """Directories of runs and sweeps: those at the path that is typed, and those in runs/ while nothing is typed."""
    return [*_paths(incomplete, _is_run), *([] if incomplete else _paths("runs/", _is_run))]


def folders(incomplete: str) -> list[str]:
    """Folders."""
    return _paths(incomplete, lambda path: False)


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of the configuration, a part at a time (`tasks.`, `tasks.digits.`, `tasks.digits.lr=`), and known values."""
    if "=" in incomplete:
        return _values(incomplete)
    *path, _ = incomplete.split(".")
    sections = sorted(names_in("runs", "SECTIONS"))
    match path:
        case []:
            keys = [key for key in ["method", *names_in("runs", "Config")] if key not in sections]
            return [*_assignments("", keys), *(f"{section}." for section in sections)]
        case ["tasks"]:
            return [f"tasks.{name}." for name in _task_names(context)]
        case [section] | ["tasks" as section, _] if section in sections:
            schema = f"{section.removesuffix('s').title()}Config"
            return _assignments(".".join([*path, ""]), names_in("runs", schema))
    return []


def deployment_settings(incomplete: str) -> list[str]:
    """Keys of a deployment's settings, and known values."""
    return _values(incomplete) if "=" in incomplete else _assignments("", names_in("deployment", "DeploymentSettings"))


def _assignments(path: str, keys: Iterable[str]) -> list[str]:
    return [f"{path}{key}=" for key in keys]


def _values(incomplete: str) -> list[str]:
    key = incomplete.partition("=")[0]
    return [f"{key}={value}" for value in _VALUES.get(key.rpartition(".")[2], list)()]


def _task_names(context: typer.Context) -> list[str]:
    """The tasks of the configuration that was typed; none where it cannot be read, as running it will say.

    While an option lacks its value, click counts arguments as extra ones.
    """
    file = presets.find(context.params.get("file") or (*context.args, "demo")[0])
    try:
        return [str(task["name"]) for task in tomllib.loads(file.read_text())["tasks"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file() or is_sweep(path)


def _paths(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    """The wanted entries of the folder that is being typed, and the folders in which to look further."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        inside = sorted(Path(folder + slash or ".").expanduser().iterdir())
    except OSError:
        return []
    seen = [path for path in inside if path.name.startswith(".") == start.startswith(".")]
    found = [path.name if wanted(path) else f"{path.name}/" for path in seen if wanted(path) or path.is_dir()]
    return [f"{folder}{slash}{name}" for name in found]


def names_in(room: str, table: str) -> list[str]:
    """The names in a table of a room, read from its source code: to import it would import torch, which takes seconds.

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
