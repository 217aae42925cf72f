"""The papers' federations as configurations, ready to run by name: `mmfl run lvr-3tasks`."""

import re
from pathlib import Path

_FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def path_of(name: str) -> Path:
    """The file of a preset."""
    return _FOLDER / f"{name}.toml"


def find(file: str | Path) -> Path:
    """A file, or the preset of that name where there is no such file."""
    return path_of(str(file)) if str(file) in NAMES and not Path(file).is_file() else Path(file)


def summary(name: str) -> str:
    """The first sentence of a preset's comment."""
    lines = [line.removeprefix("#").strip() for line in path_of(name).read_text().split("\n\n")[0].splitlines()]
    return re.split(r"(?<!al)\. ", " ".join(lines))[0].rstrip(".") + "."
