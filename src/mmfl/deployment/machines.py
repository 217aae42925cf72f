"""What runs on the server's machine: the SuperLink that nodes connect to, and the processes beside it.

Where other machines can reach it, the SuperLink is behind a proxy.
"""

import logging
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmfl.deployment import programs
from mmfl.deployment.child_processes import ChildProcesses, wait_until
from mmfl.deployment.news import SOCKET_VARIABLE
from mmfl.deployment.registration import Registrations
from mmfl.deployment.security import Address, Keys
from mmfl.deployment.supervision import Supervised
from mmfl.errors import UserError

_log = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 1 << 29  # of a node's message, by default
_PROXY = Path(__file__).with_name("proxy.py")


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink, at which runs are started through `control`, with the processes beside it.

    Its state outlives it, so neither nodes nor runs are lost when one of the processes ends.
    """

    control: programs.ControlAPI
    supervised: Sequence[Supervised]
    registrations: Registrations | None = None
    say: Callable[[str], None] = _log.warning

    def check(self) -> None:
        """Starts again what has ended, and registers and removes keys that changed; must be called regularly."""
        for change in self.registrations.update_if_changed() if self.registrations else ():
            self.say(change)
        for each in self.supervised:
            each.check()


def control_address(
    address: Address, keys: Keys | None, insecure: bool, control_port: int | None = None, max_bytes: int | None = None
) -> Address:
    """The address at which runs are started; refuses plaintext to other machines unless `insecure` is set."""
    if (keys is not None) == insecure and (insecure or not address.loopback):
        raise UserError(
            f"link on {address}: where other machines can reach it, it needs certificates and node keys; expected "
            "either --keys DIR (`mmfl keys make` makes them), or --insecure to do without."
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
    state: Path | None = None,
    say: Callable[[str], None] = _log.warning,
) -> SuperLink:
    """Starts a SuperLink at `inner`, which accepts the nodes whose public keys are in `keys`; runs are started there.

    If nodes connect to another `address`, a proxy passes on their messages, of at most `max_bytes` bytes. The folder
    `state` keeps nodes, runs and messages; without it, they end with `processes`. `say` is told what ended.
    """
    size = str(max_bytes or MAX_MESSAGE_BYTES)
    for each in {address, inner}:
        check_free(each)
    home, state = processes.folder / "link", state or processes.folder / "state"
    database, secret = _open_state(state)
    news = processes.folder / "news"
    limit = {} if inner == address else {programs.MAX_BYTES_VARIABLE: size, SOCKET_VARIABLE: str(news)}
    table = state / "nodes.json"
    limit |= {programs.NODES_VARIABLE: str(table)} if keys else {}
    environment = programs.environment(home) | limit

    def supervise(name: str, command: Sequence[str]) -> Supervised:
        return Supervised(processes, lambda: processes.start(name, command, environment), say)

    superlink = supervise("superlink", programs.superlink(inner, keys, database, secret))
    wait_until(lambda: listens(inner), superlink.child, "listen", say=say)
    control = programs.ControlAPI(inner, keys.authority if keys else None, home)
    registrations = Registrations(control, keys, table) if keys else None
    if registrations:
        registrations.update()
    superexec = supervise("superexec", programs.superexec(inner, keys, secret))
    if inner == address:
        return SuperLink(control, [superlink, superexec], registrations, say)
    command = [sys.executable, "-P", str(_PROXY), "--host", address.host, "--port", str(address.port)]
    command += ["--prefix", programs.FLEET, "--target-host", inner.host, "--target-port", str(inner.port)]
    command += ["--max-bytes", size, "--news", str(news)]
    if keys:
        command += ["--certificate", str(keys.certificate), "--key", str(keys.server_key)]
        command += ["--authority", str(keys.authority), "--keys", str(keys.folder)]
    proxy = supervise("proxy", command)
    wait_until(lambda: listens(address), proxy.child, "listen", say=say)
    return SuperLink(control, [superlink, superexec, proxy], registrations, say)


def _open_state(folder: Path) -> tuple[Path, Path]:
    """The database of a SuperLink, and the file with the secret of its SuperExec, in a folder that is made if need be.

    Nobody else may read the folder.
    """
    secret = folder / "superexec.secret"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        if not secret.exists():
            secret.touch(0o600)
            secret.write_text(secrets.token_hex(32))
    except OSError as error:
        raise UserError(f"state '{folder}' cannot be written: {error.strerror}.") from None
    return folder / "superlink.sqlite", secret


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_free(address: Address) -> None:
    """Refuses an address where another process listens."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise UserError(f"link cannot listen at {address}: {error.strerror}.") from None


def listens(address: Address) -> bool:
    """Whether a process on this machine accepts connections at an address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    try:
        socket.create_connection((host, address.port), timeout=1).close()
    except OSError:
        return False
    return True
