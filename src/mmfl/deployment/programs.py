"""Flower's programs: their command lines, environment and settings. No other module knows their options.

Written for flwr 1.41, whose SuperLink serves nodes, runs and its own processes over HTTP on one port.
"""

import json
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from mmfl.errors import UserError

if TYPE_CHECKING:
    from mmfl.deployment.security import Address, Keys

CONNECTION = "mmfl"  # the name of the connection in the settings that we write
FLEET = "/v1/fleet/"  # the path of nodes' requests; all others are for those who start runs
# The variable by which a SuperLink behind a proxy, and its runs, know the largest request of a node.
MAX_BYTES_VARIABLE = "MMFL_MAX_MESSAGE_BYTES"
_REGISTER = """
import sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="flwr")
flwr = command.load()
for key in sys.argv[2:]:
    flwr(["supernode", "register", key, sys.argv[1]], standalone_mode=False)
"""
_POLL_SECONDS = "0.1"  # between looks for work; Flower's default of a second would delay every message


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


def superlink(address: "Address", keys: "Keys | None") -> list[str]:
    """Starts a SuperLink; with keys, it has a certificate and lets in only nodes with a registered key."""
    command = ["flower-superlink", "--host", address.host, "--port", str(address.port)]
    command += ["--disable-runtime-dependency-installation"]
    if keys is None:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(keys.authority), "--ssl-certfile", str(keys.certificate)]
    return [*command, "--ssl-keyfile", str(keys.server_key), "--enable-supernode-auth"]


def supernode(server: str, port: int, worker: Path, root: Path | None, key: Path | None) -> list[str]:
    """Starts a SuperNode; `port` is for its own processes, on loopback, and `worker` the socket of its worker."""
    command = ["flower-supernode", "--superlink", server, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--node-config", f'worker="{worker}"']
    command += ["--insecure"] if root is None else ["--root-certificates", str(root)]
    return command if key is None else [*command, "--auth-supernode-private-key", str(key)]


def write_connection(home: Path, address: str, root: Path | None) -> None:
    """Writes the settings by which `flwr`, with this home, finds the SuperLink."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    security: dict[str, Any] = {"insecure": True} if root is None else {"root-certificates": str(root)}
    connection = {"address": address, **security}
    settings = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(settings))


def start_run(app: Path) -> list[str]:
    """Starts a run of the app in a folder; prints JSON with the run's id."""
    return ["flwr", "run", str(app), CONNECTION, "--format", "json"]


def show_run(run: int) -> list[str]:
    """Prints the status of a run as JSON."""
    return ["flwr", "list", CONNECTION, "--run-id", str(run), "--format", "json"]


def stop_run(run: int) -> list[str]:
    """Stops a run immediately."""
    return ["flwr", "stop", str(run), CONNECTION]


def register_nodes(keys: Sequence[Path]) -> list[str]:
    """Registers the nodes with these public keys: `flwr supernode register` for each, in one process."""
    return [sys.executable, "-c", _REGISTER, CONNECTION, *map(str, keys)]


def parse_json(output: str) -> dict[str, Any]:
    """The first JSON object in the output of `flwr`, whatever is printed around it."""
    for brace in re.finditer("{", output):
        with suppress(ValueError):
            found: dict[str, Any] = json.JSONDecoder().raw_decode(output, brace.start())[0]
            return found
    return {}
