"""Keys: the folder of certificates and keys that `mmfl keys` makes and changes, also while the link runs."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

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
            raise UserError(f'{where} is missing; expected a line such as {self._names()[0]} = "0-9" for each key.') from None
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
            raise UserError(f"key '{shorten(name)}': expected a name of letters, digits, dots, hyphens and underscores.")
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

    def renew(self, hosts: Sequence[str] = (), authority_key: Path | None = None) -> None:
        """A new certificate of the server for a year, by default with the names of the old one."""
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

    def _write(self, files: Mapping[str, bytes]) -> None:
        """Writes files, each whole or not at all; private ones can be read by their owner alone."""
        for name, content in files.items():
            temporary = self.folder / f".{name}"
            temporary.unlink(missing_ok=True)
            temporary.touch(0o600 if name.endswith(".key") else 0o644)
            temporary.write_bytes(content)
            temporary.replace(self.folder / name)


def make_keys(folder: Path, hosts: Sequence[str], nodes: int, clients: int | None = None) -> Keys:
    """Makes an authority, a certificate for a server with these host names (and loopback), and a key pair per node.

    The clients, by default as many as nodes, are divided over the nodes in order.
    """
    from mmfl.deployment import certificates

    if not hosts:
        raise UserError("--server names no host; expected the names or addresses by which nodes reach the server.")
    if not 1 <= nodes <= _MAX_NODES:
        raise UserError(f"--nodes is {nodes}; expected 1 to {_MAX_NODES}.")
    if clients is not None and clients < nodes:
        raise UserError(f"--clients is {clients}; expected at least one for each of the {nodes} nodes.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"keys '{folder}' exists; keys are never written over, choose another folder.")
    authority = certificates.make_authority()
    files = authority | certificates.make_server(authority["ca.key"], _with_local_names(hosts))
    for k in range(nodes):
        files |= certificates.make_node(f"node-{k}")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        keys = Keys(folder.resolve())
        keys._write(files | {keys.table.name: _as_toml(_divide(clients or nodes, nodes))})
    except OSError as error:
        raise UserError(f"keys '{folder}' cannot be written: {error.strerror}.") from None
    return keys


def _with_local_names(hosts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*(host.strip() for host in hosts), *LOCAL_NAMES]))


def _divide(clients: int, nodes: int) -> dict[str, str]:
    """The clients of each node, in order: 7 clients of 2 nodes are 0-3 and 4-6."""
    ends = [clients * k // nodes + (1 if clients * k % nodes else 0) for k in range(nodes + 1)]
    return {
        f"node-{k}": str(first) if last == first + 1 else f"{first}-{last - 1}"
        for k, (first, last) in enumerate(zip(ends[:-1], ends[1:], strict=True))
    }


def _checked(clients: str) -> str:
    try:
        ClientNumbers.parse(clients)
    except NotClientsError as error:
        problem = f"--clients '{clients}': '{error}' is not a client, or repeats one"
        raise UserError(f"{problem}; expected numbers such as 0,4-9, or {ANY}.") from None
    return clients


def _as_toml(table: Mapping[str, str]) -> bytes:
    import tomli_w

    return (_HEADER + tomli_w.dumps(dict(table))).encode()
