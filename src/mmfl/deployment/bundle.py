"""The app that Flower ships to the server's process and to every node: the ClientApp and the user's module."""

import ast
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from mmfl.errors import UserError

MODULE = "deployed"  # the name of the user's module in the app; its own name could hide another module
SERVER = "mmfl.deployment.server_app:app"


def check_module(path: Path) -> Path:
    """The absolute path of the user's module; refuses what is not a valid Python file."""
    if path.suffix != ".py":
        raise UserError(f"app '{path}' is not a Python file; expected one such as app.py.")
    try:
        ast.parse(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise UserError(f"app '{path}' does not exist; expected a Python file.") from None
    except OSError as error:
        raise UserError(f"app '{path}' cannot be read: {error.strerror}.") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"app '{path}'{line}: not valid Python: {getattr(error, 'msg', error)}.") from None
    return path.resolve()


def write_app(
    folder: Path, module: Path, directory: Path, settings: Mapping[str, Any], resume: bool = False, server: str = SERVER
) -> Path:
    """Writes the app of a run into a new folder; `server` names the ServerApp, as `module:attribute`."""
    folder.mkdir(parents=True)
    home, _, name = server.partition(":")
    app = {
        "publisher": "mmfl",
        "components": {"serverapp": "serverapp:app", "clientapp": "client_app:app"},
        "config": {"directory": str(directory.resolve()), "resume": resume, "settings": json.dumps(settings)},
    }
    project = {
        "project": {"name": "mmfl-deployment", "version": "1.0.0", "dependencies": []},
        "tool": {"flwr": {"app": app}},
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    (folder / "serverapp.py").write_text(f"from {home} import {name} as app\n\n__all__ = ['app']\n")
    shutil.copyfile(Path(__file__).with_name("client_app.py"), folder / "client_app.py")
    shutil.copyfile(module, folder / f"{MODULE}.py")
    return folder
