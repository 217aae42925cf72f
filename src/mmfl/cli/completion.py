"""What completes an argument or the value of an option."""

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import typer
from typer import _completion_classes
from typer import _completion_shared as typers

from mmfl.cli import names
from mmfl.runs import presets
from mmfl.runs.layout import CONFIG

_VALUES = {
    "method": names.METHODS,
    "engine": names.ENGINES,
    "precision": names.PRECISIONS,
    "device": names.DEVICES,
    "diagnose": ("true", "false"),
    "data": names.SOURCES,
}


def use_our_scripts() -> None:
    """Lets `--install-completion` install the scripts beside this file.

    Typer's own put a blank after `rounds=` and `runs/`, and do not know that bash ends a word at "=". Help comes as it
    was written: typer would fold it into lines, as if each were something to complete.
    """
    _completion_classes._sanitize_help_text = lambda text: text
    for path in (Path(__file__).parent / "scripts").iterdir():
        typers._completion_scripts[path.suffix[1:]] = path.read_text().replace("%", "%%")


def methods(incomplete: str) -> list[str]:
    """Methods, separated by commas; each once."""
    return _several(incomplete, names.METHODS)


def exports(incomplete: str) -> list[str]:
    """Formats of figures, separated by commas; each once."""
    return _several(incomplete, names.EXPORTS)


def method() -> Iterable[str]:
    """One method."""
    return names.METHODS


def reproductions() -> Iterable[str]:
    """Tables and figures of the papers."""
    return names.REPRODUCTIONS


def trackers() -> Iterable[str]:
    """Where to log as well."""
    return names.TRACKERS


def devices() -> Iterable[str]:
    """Where to compute."""
    return names.DEVICES


def precisions() -> Iterable[str]:
    """How to multiply."""
    return names.PRECISIONS


def configurations(incomplete: str) -> list[str]:
    """Presets and TOML files."""
    return [*presets.NAMES, *_paths(incomplete, lambda path: path.suffix == ".toml")]


def modules(incomplete: str) -> list[str]:
    """Python files."""
    return _paths(incomplete, lambda path: path.suffix == ".py")


def runs(incomplete: str) -> list[str]:
    """Run directories: those in runs/, and those on the way that is being typed."""
    return [*_paths(incomplete, _is_run), *([] if incomplete else _paths("runs/", _is_run))]


def folders(incomplete: str) -> list[str]:
    """Folders."""
    return _paths(incomplete, lambda path: False)


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of the configuration, a part at a time (`tasks.`, `tasks.digits.`, `tasks.digits.lr=`), and known values."""
    if "=" in incomplete:
        return _values(incomplete)
    *path, _ = incomplete.split(".")
    match path:
        case []:
            return [*_keys("", names.CONFIG), "federation.", "privacy.", "tasks."]
        case ["federation"]:
            return _keys("federation.", names.FEDERATION)
        case ["privacy"]:
            return _keys("privacy.", names.PRIVACY)
        case ["tasks"]:
            return [f"tasks.{name}." for name in _tasks(_file(context))]
        case ["tasks", name]:
            return _keys(f"tasks.{name}.", names.TASK)
    return []


def deployment_settings(incomplete: str) -> list[str]:
    """Keys of a deployment's settings, and known values."""
    return _values(incomplete) if "=" in incomplete else _keys("", names.DEPLOYMENT)


def _several(incomplete: str, known: Iterable[str]) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in known if name not in before.split(",")]


def _keys(path: str, keys: Iterable[str]) -> list[str]:
    return [f"{path}{key}=" for key in keys]


def _values(incomplete: str) -> list[str]:
    key = incomplete.partition("=")[0]
    return [f"{key}={value}" for value in _VALUES.get(key.rpartition(".")[2], ())]


def _file(context: typer.Context) -> Path:
    """The configuration named so far; while an option lacks its value, arguments are not yet told from extra ones."""
    return Path(context.params.get("file") or (*context.args, "demo")[0])


def _tasks(file: Path) -> list[str]:
    """Names of the tasks in a file or preset; none where it cannot be read, which running it will say."""
    path = presets.path_of(str(file)) if str(file) in presets.NAMES and not file.is_file() else file
    try:
        return [str(task["name"]) for task in tomllib.loads(path.read_text())["tasks"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def _paths(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    """What is wanted in the folder that is being typed, and the folders in which to look further."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        inside = sorted(Path(folder + slash or ".").expanduser().iterdir())
    except OSError:
        return []
    seen = [path for path in inside if path.name.startswith(".") == start.startswith(".")]
    found = [path.name if wanted(path) else f"{path.name}/" for path in seen if wanted(path) or path.is_dir()]
    return [f"{folder}{slash}{name}" for name in found]
