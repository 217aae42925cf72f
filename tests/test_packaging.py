"""What pyproject.toml declares is what the package needs, and what the package names it names once."""

import ast
import re
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROVIDED = {"IPython", "triton"}  # used only where a notebook, or torch on a GPU, has already brought it


def imported_packages() -> set[str]:
    """The packages, other than this one and the standard library, that any module of mmfl imports anywhere."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"mmfl"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_imported_package_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for name in extras if name not in ("dev", "docs") for line in extras[name]),
    ]
    declared = {normalized(re.split(r"[\s\[<>=!~;]", line)[0]) for line in lines}
    distributions = packages_distributions()
    undeclared = {
        package
        for package in imported_packages() - PROVIDED
        if declared.isdisjoint(map(normalized, distributions.get(package, [])))
    }
    assert undeclared == set()


def test_a_name_means_one_thing_in_the_whole_package():
    """A reader who meets a class by its name must not have to ask which of two it is."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    names = [
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [name for name, times in Counter(names).items() if times > 1] == []
