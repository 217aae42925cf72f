"""Security of connections: addresses, and the folder of certificates and keys, which may change while a link runs."""

import ipaddress
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import tomli_w

from mmfl.deployment.known_nodes import ANY, ClientNumbers, NotClientsError
from mmfl.errors import UserError, nearest, shorten
from mmfl.runs.files import write_atomically

LOCAL_NAMES = ("localhost", "127.0.0.1")
_MAX_NODES = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_RESERVED = ("ca", "server", "clients")
_HEADER = """# The clients that the node with each key may serve: numbers and ranges such as "0,4-9", or "any".
# `mmfl link` reads this file again when it changes.
"""


@dataclass(frozen=True)
class Address:
    """A host and a port.

    >>> Address.parse("[::1]:8000").loopback, Address.parse("0.0.0.0:8000").loopback
    (True, False)
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads `host:port`, with an IPv6 host in brackets."""
        host, _, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        valid = re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536 and (":" not in host or bracketed)
        if not valid or not _is_host(host.strip("[]")):
            raise UserError(f"address '{shorten(text)}': expected host:port, with a host's name and a port to 65535.")
        return cls(host.strip("[]"), int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(name: str) -> bool:
    """Whether a text can be the name or address of a host: valid in a domain name, printable and without blanks."""
    try:
        return bool(name.encode("idna")) and name.isprintable() and " " not in name
    except UnicodeError:
        return False


class Keys:
    """The folder that `mmfl keys` makes. The server needs all of it except `ca.key`, the authority's private key.

    A node needs `ca.crt`, the certificate of the `authority` that all machines trust, and its own `NAME.key`. Nodes
    whose `public_keys` are there may connect, and serve the clients that `clients.toml` has for their names.
    """

    def __init__(self, folder: Path):
        self.folder, self.authority = folder, folder / "ca.crt"
        self.certificate, self.server_key = folder / "server.crt", folder / "server.key"
        self.table = folder / "clients.toml"

    @property
    def public_keys(self) -> list[Path]:
        """The public keys of the nodes that may connect, as the folder has them now."""
        return sorted(self.folder.glob("*.pub"))

    def node_key(self, k: int) -> Path:
        """The private key of node k."""
        return self.folder / f"node-{k}.key"

    def clients(self) -> dict[str, str]:
        """The clients that each key may serve, as `clients.toml` says; a key that is not there may serve none."""
        where = f"keys '{self.folder}': {self.table.name}"
        try:
            found = tomllib.loads(self.table.read_text())
        except FileNotFoundError:
            raise UserError(
                f'{where} is missing; expected a line such as {self._names()[0]} = "0-9" for each key.'
            ) from None
        except (OSError, ValueError) as error:
            raise UserError(f"{where} cannot be read: {error}.") from None
        for name, text in found.items():
            try:
                if not isinstance(text, str):
                    raise NotClientsError(text)
                ClientNumbers.parse(text)
            except NotClientsError as error:
                problem = f"{where}, '{name}': {str(error)!r} is not a client, or repeats one"
                raise UserError(f'{problem}; expected numbers such as "0,4-9", or "{ANY}".') from None
        return found

    def _names(self) -> list[str]:
        return [path.stem for path in self.public_keys] or ["node-0"]

    @classmethod
    def open(cls, folder: Path) -> "Keys":
        """Opens a folder; refuses one without the server's certificates."""
        keys = cls(folder)
        for path in (keys.authority, keys.certificate, keys.server_key):
            if not path.is_file():
                problem = f"keys '{folder}': {path.name} is missing"
                raise UserError(f"{problem}; `mmfl keys make {folder} --server HOST` makes all.")
        return keys

    def add(self, name: str, clients: str) -> Path:
        """Makes a key pair for one more node, which may serve these clients; returns its private key."""
        from mmfl.deployment import certificates

        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise UserError(
                f"key '{shorten(name)}': expected a name of letters, digits, dots, hyphens and underscores."
            )
        if (self.folder / f"{name}.pub").exists() or (self.folder / f"{name}.key").exists():
            raise UserError(f"keys '{self.folder}': '{name}' exists; keys are never written over, choose another name.")
        table = self.clients() | {name: _checked(clients)}
        self._write(certificates.make_node(name))
        write_atomically(self.table, _as_toml(table))
        return self.folder / f"{name}.key"

    def revoke(self, name: str) -> None:
        """Takes a node's public key out of the folder, so that it may connect no more; its name is not used again."""
        public = self.folder / f"{name}.pub"
        if not public.is_file():
            raise UserError(f"keys '{self.folder}': no key '{shorten(name)}': {nearest(name, self._names())}")
        table = {key: clients for key, clients in self.clients().items() if key != name}
        public.rename(self.folder / f"{name}.revoked")
        write_atomically(self.table, _as_toml(table))

    def renew(self, hosts: Sequence[str] = (), authority_key: Path | None = None) -> datetime:
        """A new certificate of the server for a year, by default with the names of the old one; returns its end."""
        from mmfl.deployment import certificates

        path = authority_key or self.folder / "ca.key"
        try:
            key = path.read_bytes()
            if not certificates.is_issued_by(self.authority.read_bytes(), key):
                raise ValueError("it is not the key of ca.crt")
        except OSError as error:
            problem = f"keys '{self.folder}': the authority's key '{path}' cannot be read: {error.strerror}"
            raise UserError(f"{problem}; expected --authority-key with the place where it is kept.") from None
        except (ValueError, TypeError) as error:
            raise UserError(f"keys '{self.folder}': '{path}' does not fit: {error}.") from None
        names = _with_local_names(hosts) if hosts else certificates.hosts_of(self.certificate.read_bytes())
        self._write(certificates.make_server(key, names))
        return certificates.end_of(self.certificate.read_bytes())

    def _write(self, files: Mapping[str, bytes]) -> None:
        """Writes files, each whole or not at all; private ones can be read by their owner alone."""
        for name, content in files.items():
            temporary = self.folder / f".{name}"
            temporary.unlink(missing_ok=True)
            temporary.touch(0o600 if name.endswith(".key") else 0o644)
            temporary.write_bytes(content)
            temporary.replace(self.folder / name)


def check_file(path: Path | None, option: str) -> Path | None:
    """The absolute path of a file that an option names; refuses one that does not exist."""
    if path is not None and not path.is_file():
        raise UserError(f"{option} '{path}' does not exist; `mmfl keys make` makes such files.")
    return path.resolve() if path else None


def make_keys(folder: Path, hosts: Sequence[str], clients: Sequence[str]) -> Keys:
    """Makes an authority, a certificate for a server with these host names (and loopback), and a key pair for each
    node, given the clients that it may serve."""
    from mmfl.deployment import certificates

    if not hosts:
        raise UserError("--server names no host; expected the names or addresses by which nodes reach the server.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"keys '{folder}' exists; keys are never written over, choose another folder.")
    table = {f"node-{k}": _checked(each) for k, each in enumerate(clients)}
    authority = certificates.make_authority()
    files = authority | certificates.make_server(authority["ca.key"], _with_local_names(hosts))
    for name in table:
        files |= certificates.make_node(name)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        keys = Keys(folder.resolve())
        keys._write(files | {keys.table.name: _as_toml(table)})
    except OSError as error:
        raise UserError(f"keys '{folder}' cannot be written: {error.strerror}.") from None
    return keys


def divide_clients(clients: int | None, nodes: int) -> list[str]:
    """The clients of each node, in order; by default one for each.

    >>> divide_clients(7, 2)
    ['0-3', '4-6']
    """
    if not 1 <= nodes <= _MAX_NODES:
        raise UserError(f"--nodes is {nodes}; expected 1 to {_MAX_NODES}.")
    clients = nodes if clients is None else clients
    if clients < nodes:
        raise UserError(f"--clients is {clients}; expected at least one for each of the {nodes} nodes.")
    ends = [-(-clients * k // nodes) for k in range(nodes + 1)]
    return [str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in pairwise(ends)]


def _with_local_names(hosts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*(host.strip() for host in hosts), *LOCAL_NAMES]))


def _checked(clients: str) -> str:
    try:
        ClientNumbers.parse(clients)
    except NotClientsError as error:
        problem = f"--clients '{clients}': '{error}' is not a client, or repeats one"
        raise UserError(f"{problem}; expected numbers such as 0,4-9, or {ANY}.") from None
    return clients


def _as_toml(table: Mapping[str, str]) -> bytes:
    return (_HEADER + tomli_w.dumps(dict(table))).encode()
