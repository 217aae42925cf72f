"""What a start of the program imports, and what it leaves for later."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mmfl

TELL = "; import sys; sys.stderr.write(' '.join(sys.modules))"
NUMBERS = {"torch", "numpy", "pandas", "pydantic", "sklearn", "scipy", "matplotlib", "plotly", "PIL", "flwr"}
PICTURES = {"sklearn", "scipy", "sympy", "matplotlib", "plotly", "PIL", "flwr", "IPython", "typer"}
"""What takes long to import and only some uses need: clusterings, tests, figures, pictures, deployments."""


def imported(program: str, cwd: Path) -> set[str]:
    """All modules that a new process has after a program."""
    path = str(Path(mmfl.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", program + TELL]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=env)
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]], ids=" ".join)
def test_help_and_version_come_without_torch(arguments, tmp_path):
    call = f"import contextlib, mmfl.cli, sys; sys.argv[1:] = {arguments}"
    modules = imported(f"{call}\nwith contextlib.suppress(SystemExit): mmfl.cli.main()\npass", tmp_path)
    assert "mmfl.cli.program" in modules
    assert not modules & NUMBERS


def test_importing_the_package_imports_nothing_else_of_it(tmp_path):
    assert not imported("import mmfl", tmp_path) & {*NUMBERS, "mmfl.public", "mmfl.api"}


@pytest.mark.parametrize("use", ["mmfl.train", "mmfl.data.digits()", "mmfl.models.SmallCNN()"])
def test_the_python_interface_is_there_without_what_only_figures_and_clusterings_need(use, tmp_path):
    modules = imported(f"import mmfl; {use}", tmp_path)
    assert "mmfl" in modules
    assert not modules & PICTURES
    assert not {name for name in modules if name.startswith(("mmfl.report.page", "mmfl.report.figures"))}
