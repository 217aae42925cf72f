"""Flower's programs: their command lines, environment and settings, and the app that they ship to server and nodes.

Written for flwr 1.41, whose SuperLink serves nodes, runs and its own processes over HTTP on one port.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from mmfl.deployment.diagnosis import find_problem, is_for_nodes
from mmfl.deployment.security import Address, Keys
from mmfl.errors import UserError

SERVER_APP = "mmfl.deployment.server_app:app"
MODULE = "deployed"  # the name of the user's module in the app; its own name could hide another module
CONNECTION = "mmfl"  # the name of the connection in the settings that we write
FLEET = "/v1/fleet/"  # the path of nodes' requests; all others are for those who start runs
# The variable by which a SuperLink behind a proxy, and its runs, know the largest request of a node.
MAX_BYTES_VARIABLE = "MMFL_MAX_MESSAGE_BYTES"
# The variable by which the runs of a SuperLink with keys find the file that says whose key each node has.
NODES_VARIABLE = "MMFL_NODES"
_FLOWER_NODE = Path(__file__).with_name("flower_node.py")
_SEVERAL = """
import json, sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="flwr")
flwr = command.load()
for words in json.loads(sys.argv[1]):
    flwr(words, standalone_mode=False)
"""
_UNREACHABLE = "Connection to the SuperLink is unavailable"
_SECONDS_TO_ANSWER = 300.0
_POLL_SECONDS = "0.7"  # between looks for work: a second, as by default, delays messages; less costs idle nodes more


def require_flower() -> None:
    """Raises an error where Flower is not installed."""
    if find_spec("flwr") is None:
        raise UserError("deployment needs Flower, which is not installed; expected: pip install 'mmfl[flower]'.")


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: no telemetry, no update checks, and `home` for their settings.

    The programs are found in this Python's own installation where they are there.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    unproxied = [inherited[key] for key in ("no_proxy", "NO_PROXY") if inherited.get(key)]
    installed = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    local = ",".join([*unproxied[:1], "127.0.0.1", "localhost", "::1"])
    return {
        **inherited,
        "PATH": os.pathsep.join([*installed, inherited.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _POLL_SECONDS,
        "NO_PROXY": local,
        "no_proxy": local,
        "PYTHONUNBUFFERED": "1",
    }


def superlink(address: Address, keys: Keys | None, database: Path, secret: Path) -> list[str]:
    """Starts a SuperLink, whose state outlives it in a database; `secret` is the file by which it knows its SuperExec.

    With keys, it has a certificate and lets in only nodes with a registered key.
    """
    command = ["flower-superlink", "--host", address.host, "--port", str(address.port)]
    command += ["--disable-runtime-dependency-installation", "--database", str(database)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    if keys is None:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(keys.authority), "--ssl-certfile", str(keys.certificate)]
    return [*command, "--ssl-keyfile", str(keys.server_key), "--enable-supernode-auth"]


def superexec(address: Address, keys: Keys | None, secret: Path) -> list[str]:
    """Starts the SuperExec of a SuperLink, which starts the ServerApps of runs."""
    command = ["flower-superexec", "--runtime-api-address", str(address), "--superexec-auth-secret-file", str(secret)]
    return [*command, "--insecure"] if keys is None else [*command, "--root-certificates", str(keys.authority)]


def supernode(server: str, port: int, worker: Path, root: Path | None, key: Path | None, folder: Path) -> list[str]:
    """Starts a SuperNode; `port` is for its own processes, on loopback, and `worker` the socket of its worker.

    The programs that it starts are found in `folder`, which must come first in PATH.
    """
    command = [sys.executable, "-P", str(_FLOWER_NODE), str(folder)]
    command += ["flower-supernode", "--superlink", server, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--node-config", f'worker="{worker}"']
    command += ["--insecure"] if root is None else ["--root-certificates", str(root)]
    return command if key is None else [*command, "--auth-supernode-private-key", str(key)]


@dataclass(frozen=True)
class ControlAPI:
    """Flower's Control API of a SuperLink, at which runs are started.

    `root` is the certificate by which the SuperLink is verified, `home` the folder that `flwr` keeps its settings in.
    """

    address: Address
    root: Path | None
    home: Path

    def start_run(self, app: Path) -> int:
        """Starts a run of the app in a folder; returns the run's id."""
        answer = self.ask(["flwr", "run", str(app), CONNECTION, "--format", "json"], "starting the run")
        return int(answer["run-id"])

    def show_run(self, run: int) -> dict[str, Any]:
        """What the SuperLink knows of a run."""
        command = ["flwr", "list", CONNECTION, "--run-id", str(run), "--format", "json"]
        found: dict[str, Any] = (self.ask(command, f"asking after run {run}").get("runs") or [{}])[0]
        return found

    def list_runs(self) -> list[dict[str, str]]:
        """The runs that the SuperLink knows: id, state and since when."""
        found = self.ask(["flwr", "list", CONNECTION, "--format", "json"], "asking for runs").get("runs") or []
        keys = {"run": "run-id", "state": "status", "started": "starting-at"}
        return [{name: str(run.get(key, "")) for name, key in keys.items()} for run in found]

    def list_nodes(self) -> list[dict[str, str]]:
        """The nodes that the SuperLink knows: id, state and since when they are connected."""
        command = ["flwr", "supernode", "list", CONNECTION, "--format", "json"]
        found = self.ask(command, "asking for nodes").get("nodes") or []
        keys = {"node": "node-id", "state": "status", "connected": "online-at"}
        return [{name: str(node.get(key, "")) for name, key in keys.items()} for node in found]

    def stop_run(self, run: int) -> None:
        """Stops a run immediately."""
        self.ask(["flwr", "stop", str(run), CONNECTION], f"stopping run {run}")

    def register_nodes(self, keys: Sequence[Path]) -> list[str]:
        """Registers nodes by their public keys; returns the number of each."""
        printed = self._run_several(
            [["supernode", "register", str(key), CONNECTION] for key in keys], "registering keys"
        )
        return re.findall(r"SuperNode (\d+) registered", printed)

    def unregister_nodes(self, nodes: Sequence[str]) -> None:
        """Removes nodes by their numbers; their keys cannot be registered again."""
        self._run_several([["supernode", "unregister", node, CONNECTION] for node in nodes], "removing keys")

    def _run_several(self, commands: Sequence[Sequence[str]], what: str) -> str:
        """Runs several of Flower's commands in one process, since each would take seconds to start."""
        return self._run([sys.executable, "-c", _SEVERAL, json.dumps(commands)], what) if commands else ""

    def ask(self, command: Sequence[str], what: str) -> dict[str, Any]:
        """Runs one of Flower's commands and returns the JSON it prints."""
        return _first_object(self._run(command, what))

    def _run(self, command: Sequence[str], what: str) -> str:
        """Runs one of Flower's commands and returns what it prints."""
        security: dict[str, Any] = {"root-certificates": str(self.root)} if self.root else {"insecure": True}
        connection = {"address": str(self.address), **security}
        variables = environment(self.home)
        (self.home / "config.toml").write_text(
            tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}})
        )
        try:
            done = subprocess.run(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS_TO_ANSWER,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{what}: the SuperLink at {self.address} did not answer.") from None
        answer = _first_object(done.stdout)
        if done.returncode or answer.get("success") is False:
            lines = str(answer.get("error-message") or done.stderr or done.stdout).strip().splitlines()
            reason = lines[-1] if lines else f"exit code {done.returncode}"
            raise UserError(f"{what}: {self._problem(reason)}")
        return done.stdout

    def _problem(self, reason: str) -> str:
        """Why a command has failed, and what to do: what can be seen from here, or else the reason that it gave."""
        address = self.address
        if is_for_nodes(address, self.root):
            runs = Address(address.host, address.port + 1)
            return (
                f"{address} is where nodes connect; expected the address at which runs are started, which `mmfl link` "
                f"prints ({runs}, unless it was given another --control-port)."
            )
        found = find_problem(address, self.root)
        if found and found.lasting:
            return f"{found.text}."
        if found or _UNREACHABLE in reason:
            return f"no SuperLink answers at {address}; `mmfl link` starts one, and says where."
        return f"refused by the SuperLink at {address}: {reason}"


def _first_object(output: str) -> dict[str, Any]:
    """The first JSON object in the output of `flwr`, whatever is printed around it."""
    for brace in re.finditer("{", output):
        with suppress(ValueError):
            found: dict[str, Any] = json.JSONDecoder().raw_decode(output, brace.start())[0]
            return found
    return {}


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
        raise UserError(f"app '{path}' is not valid Python: {error}.") from None
    return path.resolve()


def write_app(
    home: Path, module: Path, directory: Path, settings: Mapping[str, Any], resume: bool, server: str
) -> Path:
    """Writes the app of a run into a new folder in `home`; `server` names the ServerApp, as `module:attribute`."""
    folder = Path(tempfile.mkdtemp(prefix="app-", dir=home))
    server_module, _, name = server.partition(":")
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
    (folder / "serverapp.py").write_text(f"from {server_module} import {name} as app\n\n__all__ = ['app']\n")
    shutil.copyfile(Path(__file__).with_name("client_app.py"), folder / "client_app.py")
    shutil.copyfile(module, folder / f"{MODULE}.py")
    return folder
