"""The SuperLink: the server that nodes connect to, behind a proxy where other machines can reach it."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmfl.deployment import programs
from mmfl.deployment.child_processes import Child, ChildProcesses, wait_until
from mmfl.deployment.security import Address, Keys
from mmfl.errors import UserError

MAX_MESSAGE_BYTES = 1 << 29  # of a node's message, by default
_PROXY = Path(__file__).with_name("proxy.py")
_UNREACHABLE = "Connection to the SuperLink is unavailable"
_SECONDS_TO_START = 300.0
_SECONDS_TO_ANSWER = 300.0


@dataclass(frozen=True)
class ControlAPI:
    """Flower's Control API of a SuperLink, at which runs are started.

    `root` is the certificate by which the SuperLink is verified, `home` the folder that `flwr` keeps its settings in.
    """

    address: Address
    root: Path | None
    home: Path

    def ask(self, command: Sequence[str], what: str) -> dict[str, Any]:
        """Runs one of Flower's commands and returns the JSON it prints."""
        programs.write_connection(self.home, str(self.address), self.root)
        try:
            done = subprocess.run(
                command,
                env=programs.environment(self.home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS_TO_ANSWER,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{what}: the SuperLink at {self.address} did not answer.") from None
        answer = programs.parse_json(done.stdout)
        if done.returncode or answer.get("success") is False:
            lines = str(answer.get("error-message") or done.stderr or done.stdout).strip().splitlines()
            reason = lines[-1] if lines else f"exit code {done.returncode}"
            if _UNREACHABLE in reason:
                raise UserError(f"{what}: no SuperLink answers at {self.address}; `mmfl link` says where one does.")
            raise UserError(f"{what}: refused by the SuperLink at {self.address}: {reason}")
        return answer


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink, at which runs are started through `control`."""

    control: ControlAPI
    children: Sequence[Child]

    def check(self) -> None:
        """Raises an error if the SuperLink or its proxy has ended."""
        for child in self.children:
            if not child.alive:
                raise UserError(f"{child.name} ended: {child.error_line()}")


def control_address(
    address: Address, keys: Keys | None, insecure: bool, control_port: int | None = None, max_bytes: int | None = None
) -> Address:
    """The address at which runs are started; refuses plaintext to other machines unless `insecure` is set."""
    if keys is None and not address.loopback and not insecure:
        raise UserError(
            f"link on {address}: other machines can reach it, so it needs certificates and node keys; expected "
            "--keys DIR (`mmfl keys` makes them), or --insecure to do without."
        )
    if keys is not None and insecure:
        raise UserError("link: both --keys and --insecure were given; expected one of them.")
    if keys is None and address.loopback:
        if control_port is not None or max_bytes is not None:
            raise UserError(f"link on {address}: --control-port and --most are for its proxy, which needs --keys DIR.")
        return address
    control = Address("127.0.0.1", address.port + 1 if control_port is None else control_port)
    if not 0 < control.port < 65536:
        problem = f"--control-port is {control.port}" if control_port is not None else f"no port follows {address.port}"
        raise UserError(f"link on {address}: {problem}; expected --control-port from 1 to 65535.")
    if control.port == address.port:
        raise UserError(f"link: --control-port is {control_port}, where nodes connect; expected another port.")
    return control


def start_superlink(
    processes: ChildProcesses,
    address: Address,
    inner: Address,
    keys: Keys | None = None,
    max_bytes: int | None = None,
) -> SuperLink:
    """Starts a SuperLink at `inner`, which accepts the nodes whose public keys are in `keys`; runs are started there.

    If nodes connect to another `address`, a proxy passes on their messages, of at most `max_bytes` bytes.
    """
    size = str(max_bytes or MAX_MESSAGE_BYTES)
    for each in {address, inner}:
        _check_free(each)
    home = processes.folder / "link"
    limit = {} if inner == address else {programs.MAX_BYTES_VARIABLE: size}
    superlink = processes.start("superlink", programs.superlink(inner, keys), programs.environment(home) | limit)
    wait_until(lambda: _listens(inner), superlink, _SECONDS_TO_START, "it listened")
    control = ControlAPI(inner, keys.authority if keys else None, home)
    if keys and keys.public_keys:
        control.ask(programs.register_nodes(keys.public_keys), "registering the nodes' keys")
    if inner == address:
        return SuperLink(control, [superlink])
    command = [sys.executable, "-P", str(_PROXY), "--host", address.host, "--port", str(address.port)]
    command += ["--prefix", programs.FLEET, "--target", f"{'https' if keys else 'http'}://{inner}", "--max-bytes", size]
    if keys:
        command += ["--certificate", str(keys.certificate), "--key", str(keys.server_key)]
        command += ["--authority", str(keys.authority)]
    proxy = processes.start("proxy", command, programs.environment(home))
    wait_until(lambda: _listens(address), proxy, _SECONDS_TO_START, "it listened")
    return SuperLink(control, [superlink, proxy])


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_free(address: Address) -> None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise UserError(f"link cannot listen at {address}: {error.strerror}.") from None


def _listens(address: Address) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    try:
        socket.create_connection((host, address.port), timeout=1).close()
    except OSError:
        return False
    return True
