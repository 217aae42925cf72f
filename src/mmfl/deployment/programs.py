"""Flower's programs: their command lines, environment and settings. Nothing else in the package knows a flag.

Written for flwr 1.41, whose SuperLink serves nodes, runs and its own processes over HTTP on one port.
"""

import json
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from mmfl.errors import UserError

CONNECTION = "mmfl"  # the name of the one connection in a home of ours
FLEET = "/v1/fleet/"  # what nodes ask for; all else is for whoever conducts runs
MAX_MESSAGE_BYTES = (
    "MMFL_MOST"  # in the environment of a SuperLink behind a gate, and of its runs: bytes of a node's request
)
_REGISTER = """
import sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="flwr")
flwr = command.load()
for key in sys.argv[2:]:
    flwr(["supernode", "register", key, sys.argv[1]], standalone_mode=False)
"""
_POLL = "0.1"  # seconds between looks for work; Flower's own second would be a part of every message's time


@dataclass(frozen=True)
class Certificates:
    """A server's certificate and key, and the certificate of the authority that signed it."""

    authority: Path
    certificate: Path
    key: Path


def require() -> None:
    """Makes sure that Flower is installed."""
    if find_spec("flwr") is None:
        raise UserError("deployment needs Flower, which is not installed; expected: pip install 'mmfl[flower]'.")


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: offline, quiet, with a home of their own."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    unproxied = [inherited[key] for key in ("no_proxy", "NO_PROXY") if inherited.get(key)]
    local = ",".join([*unproxied[:1], "127.0.0.1", "localhost", "::1"])
    return {
        **inherited,
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), inherited.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _POLL,
        "NO_PROXY": local,
        "no_proxy": local,
        "PYTHONUNBUFFERED": "1",
    }


def superlink(host: str, port: int, certificates: Certificates | None) -> list[str]:
    """The server that nodes connect to: with certificates, it also asks nodes for a registered key."""
    command = [_program("flower-superlink"), "--host", host, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    if certificates is None:
        return [*command, "--insecure"]
    return [
        *command,
        "--ssl-ca-certfile",
        str(certificates.authority),
        "--ssl-certfile",
        str(certificates.certificate),
        "--ssl-keyfile",
        str(certificates.key),
        "--enable-supernode-auth",
    ]


def supernode(server: str, port: int, worker: Path, root: Path | None, key: Path | None) -> list[str]:
    """A node; `port` is for its own processes, on loopback, and `worker` the socket that its messages go to."""
    command = [_program("flower-supernode"), "--superlink", server, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--node-config", f'worker="{worker}"']
    command += ["--insecure"] if root is None else ["--root-certificates", str(root)]
    return command if key is None else [*command, "--auth-supernode-private-key", str(key)]


def connect(home: Path, address: str, root: Path | None) -> None:
    """Writes the connection that `flwr` uses in this home."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    security: dict[str, Any] = {"insecure": True} if root is None else {"root-certificates": str(root)}
    connection = {"address": address, **security}
    settings = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(settings))


def start_run(app: Path) -> list[str]:
    """Starts a run of the app in a folder; prints JSON with its number."""
    return [_program("flwr"), "run", str(app), CONNECTION, "--format", "json"]


def show_run(run: int) -> list[str]:
    """What has become of a run, as JSON."""
    return [_program("flwr"), "list", CONNECTION, "--run-id", str(run), "--format", "json"]


def stop_run(run: int) -> list[str]:
    """Stops a run at once."""
    return [_program("flwr"), "stop", str(run), CONNECTION]


def register_nodes(keys: Sequence[Path]) -> list[str]:
    """Lets the nodes with these public keys in: `flwr supernode register` for each, in one process."""
    return [sys.executable, "-c", _REGISTER, CONNECTION, *map(str, keys)]


def list_nodes() -> list[str]:
    """The nodes that are known, as JSON."""
    return [_program("flwr"), "supernode", "list", CONNECTION, "--format", "json"]


def answer(output: str) -> Mapping[str, Any]:
    """The JSON object in what `flwr` printed, whatever it printed around it."""
    decoder = json.JSONDecoder()
    for start, character in enumerate(output):
        if character == "{":
            try:
                found, _ = decoder.raw_decode(output[start:])
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return {}


def _program(name: str) -> str:
    """One of Flower's commands, of this Python's own installation."""
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if (folder / name).exists():
            return str(folder / name)
    return name
