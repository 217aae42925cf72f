"""The SuperLink: the server that nodes connect to, behind a proxy where other machines can reach it."""

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmfl.deployment import programs
from mmfl.deployment.child_processes import Child, ChildProcesses, wait_until
from mmfl.deployment.security import Address, Keys
from mmfl.errors import UserError

MAX_MESSAGE_BYTES = 1 << 29  # of a node's message, by default
_PROXY = Path(__file__).with_name("proxy.py")


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink, at which runs are started through `control`."""

    control: programs.ControlAPI
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
    if (keys is not None) == insecure and (insecure or not address.loopback):
        raise UserError(
            f"link on {address}: where other machines can reach it, it needs certificates and node keys; expected "
            "either --keys DIR (`mmfl keys` makes them), or --insecure to do without."
        )
    if keys is None and address.loopback:
        if control_port is not None or max_bytes is not None:
            raise UserError(f"link on {address}: --control-port and --most are for its proxy, which needs --keys DIR.")
        return address
    control = Address("127.0.0.1", address.port + 1 if control_port is None else control_port)
    if not 0 < control.port < 65536 or control.port == address.port:
        raise UserError(
            f"link on {address}: --control-port is {control.port}; expected 1 to 65535, and not where nodes connect."
        )
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
    wait_until(lambda: _listens(inner), superlink, "it listened")
    control = programs.ControlAPI(inner, keys.authority if keys else None, home)
    if keys and keys.public_keys:
        control.register_nodes(keys.public_keys)
    if inner == address:
        return SuperLink(control, [superlink])
    command = [sys.executable, "-P", str(_PROXY), "--host", address.host, "--port", str(address.port)]
    command += ["--prefix", programs.FLEET, "--target", f"{'https' if keys else 'http'}://{inner}", "--max-bytes", size]
    if keys:
        command += ["--certificate", str(keys.certificate), "--key", str(keys.server_key)]
        command += ["--authority", str(keys.authority)]
    proxy = processes.start("proxy", command, programs.environment(home))
    wait_until(lambda: _listens(address), proxy, "it listened")
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
