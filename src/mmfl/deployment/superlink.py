"""The SuperLink: the server that nodes connect to, and how it is kept from strangers."""

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmfl.deployment import programs
from mmfl.deployment.child_processes import Child, ChildProcesses, wait_until
from mmfl.deployment.security import Address, Keys
from mmfl.errors import UserError

MAX_MESSAGE_BYTES = 1 << 29  # bytes of a message from outside
_GATE = Path(__file__).with_name("proxy.py")
_UNREACHABLE = "Connection to the SuperLink is unavailable"
_SECONDS_TO_START = 300.0
_SECONDS_TO_ANSWER = 300.0


@dataclass(frozen=True)
class Control:
    """How runs are started at a SuperLink: at which address, by which certificate it is known, a home for `flwr`."""

    address: Address
    root: Path | None
    home: Path

    def ask(self, command: Sequence[str], what: str) -> dict[str, object]:
        """Runs one of Flower's commands and returns the JSON it prints."""
        programs.connect(self.home, str(self.address), self.root)
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
        answer = dict(programs.answer(done.stdout))
        if done.returncode or answer.get("success") is False:
            said = str(answer.get("error-message") or done.stderr or done.stdout).strip().splitlines()
            reason = said[-1] if said else f"exit code {done.returncode}"
            if _UNREACHABLE in reason:
                raise UserError(f"{what}: no SuperLink answers at {self.address}; `mmfl link` says where one does.")
            raise UserError(f"{what}: refused by the SuperLink at {self.address}: {reason}")
        return answer


@dataclass(frozen=True)
class Link:
    """A SuperLink that runs: `address` is for nodes, `control` for starting runs."""

    address: Address
    control: Control
    children: Sequence[Child]

    def check(self) -> None:
        """Raises an error when it has ended."""
        for child in self.children:
            if not child.alive:
                raise UserError(f"{child.name} ended: {child.complaint()}")


def check_link(
    address: Address, keys: Keys | None, insecure: bool, control_port: int | None = None, most: int | None = None
) -> Address:
    """The address at which runs are started. Refuses to serve others in plaintext, unless that was said."""
    if keys is None and not address.loopback and not insecure:
        raise UserError(
            f"link on {address}: other machines can reach it, so it needs certificates and node keys; expected "
            "--keys DIR (`mmfl keys` makes them), or --insecure to do without."
        )
    if keys is not None and insecure:
        raise UserError("link: both --keys and --insecure were given; expected one of them.")
    if keys is None and address.loopback:
        if control_port is not None or most is not None:
            raise UserError(f"link on {address}: --control-port and --most are for its gate, which needs --keys DIR.")
        return address
    control = Address("127.0.0.1", address.port + 1 if control_port is None else control_port)
    if not 0 < control.port < 65536:
        told = f"--control-port is {control.port}" if control_port is not None else f"no port follows {address.port}"
        raise UserError(f"link on {address}: {told}; expected --control-port from 1 to 65535.")
    if control.port == address.port:
        raise UserError(f"link: --control-port is {control_port}, where nodes connect; expected another port.")
    return control


def start_link(
    processes: ChildProcesses,
    address: Address,
    keys: Keys | None = None,
    insecure: bool = False,
    control_port: int | None = None,
    most: int | None = None,
) -> Link:
    """Starts a SuperLink, and lets in the nodes whose public keys are in `keys`.

    On loopback without keys it listens itself. Otherwise it listens on loopback at `control_port`, by default the next
    one, for those who start runs, and behind a gate at `address` for nodes, whose messages have at most `most` bytes.
    """
    inner, size = check_link(address, keys, insecure, control_port, most), str(most or MAX_MESSAGE_BYTES)
    certificates = keys.certificates if keys else None
    for each in {address, inner}:
        _check_free(each)
    home = processes.folder / "link"
    command = programs.superlink(inner.host, inner.port, certificates)
    limit = {} if inner == address else {programs.MAX_MESSAGE_BYTES: size}
    superlink = processes.start("superlink", command, programs.environment(home) | limit)
    children = [superlink]
    wait_until(lambda: _listens(inner), superlink, _SECONDS_TO_START, "it listened")
    control = Control(inner, certificates.authority if certificates else None, home)
    if keys and keys.public:
        control.ask(programs.register_nodes(keys.public), "registering the nodes' keys")
    if inner != address:
        scheme = "https" if certificates else "http"
        command = [sys.executable, "-P", str(_GATE), "--host", address.host, "--port", str(address.port)]
        command += ["--prefix", programs.FLEET, "--target", f"{scheme}://{inner}", "--most", size]
        if certificates:
            command += ["--certificate", str(certificates.certificate), "--key", str(certificates.key)]
            command += ["--authority", str(certificates.authority)]
        door = processes.start("gate", command, programs.environment(home))
        children.append(door)
        wait_until(lambda: _listens(address), door, _SECONDS_TO_START, "it listened")
    return Link(address, control, children)


def serve(link: Link) -> None:
    """Stays until the SuperLink ends, which is an error, or this process is told to end."""
    while True:
        link.check()
        time.sleep(0.2)


def free_port() -> int:
    """A port on loopback that nobody listens at."""
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
