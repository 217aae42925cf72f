"""Security of connections: addresses, certificates and the keys of nodes."""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mmfl.errors import UserError, shorten

LOCAL_NAMES = ("localhost", "127.0.0.1")
_VALID_DAYS = 3650
_MAX_NODES = 10_000


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

    A node needs `ca.crt`, the certificate of the `authority` that all machines trust, and its own `node-K.key`. Nodes
    whose `public_keys` are there may connect.
    """

    def __init__(self, folder: Path):
        self.folder, self.authority = folder, folder / "ca.crt"
        self.certificate, self.server_key = folder / "server.crt", folder / "server.key"
        self.public_keys = sorted(folder.glob("*.pub"))

    def node_key(self, k: int) -> Path:
        """The private key of node k."""
        return self.folder / f"node-{k}.key"

    @classmethod
    def open(cls, folder: Path) -> "Keys":
        """Opens a folder; refuses one without the server's certificates."""
        keys = cls(folder)
        for path in (keys.authority, keys.certificate, keys.server_key):
            if not path.is_file():
                raise UserError(
                    f"keys '{folder}': {path.name} is missing; `mmfl keys {folder} --server HOST` makes all."
                )
        return keys


def check_file(path: Path | None, option: str) -> Path | None:
    """The absolute path of a file that an option names; refuses one that does not exist."""
    if path is not None and not path.is_file():
        raise UserError(f"{option} '{path}' does not exist; `mmfl keys` makes such files.")
    return path.resolve() if path else None


def make_keys(folder: Path, hosts: Sequence[str], nodes: int) -> Keys:
    """Makes an authority, a certificate for a server with these host names (and loopback), and a key pair per node."""
    if not hosts:
        raise UserError("--server names no host; expected the names or addresses by which nodes reach the server.")
    if not 1 <= nodes <= _MAX_NODES:
        raise UserError(f"--nodes is {nodes}; expected 1 to {_MAX_NODES}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"keys '{folder}' exists; keys are never written over, choose another folder.")
    names = list(dict.fromkeys([*(host.strip() for host in hosts), *LOCAL_NAMES]))
    files = _files(names, nodes)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            (folder / name).touch(0o600 if name.endswith(".key") else 0o644, exist_ok=False)
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UserError(f"keys '{folder}' cannot be written: {error.strerror}.") from None
    return Keys(folder.resolve())


def _files(hosts: Sequence[str], nodes: int) -> dict[str, bytes]:
    """The name and content of every file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority, server, *others = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2 + nodes))

    def private(key: ec.EllipticCurvePrivateKey, format: PrivateFormat) -> bytes:
        return key.private_bytes(Encoding.PEM, format, NoEncryption())

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def general_name(host: str) -> x509.GeneralName:
        with suppress(ValueError):
            return x509.IPAddress(ipaddress.ip_address(host))
        with suppress(ValueError):
            if host and not set(host) & set(" :/*"):
                return x509.DNSName(host)
        raise UserError(f"--server '{host}': expected a host name or an IP address, without a port.")

    def certificate(
        subject: str, key: ec.EllipticCurvePrivateKey, is_authority: bool, *extensions: x509.ExtensionType
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            **dict.fromkeys((*unused, "encipher_only", "decipher_only"), False),
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("mmfl authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
            .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
            .add_extension(usage, critical=True)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM)

    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    files = {
        "ca.crt": certificate("mmfl authority", authority, True, identity),
        "ca.key": private(authority, PrivateFormat.PKCS8),
        "server.crt": certificate(
            "mmfl server",
            server,
            False,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            x509.SubjectAlternativeName([general_name(host) for host in hosts]),
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity),
        ),
        "server.key": private(server, PrivateFormat.PKCS8),
    }
    for k, key in enumerate(others):
        files[f"node-{k}.key"] = private(key, PrivateFormat.OpenSSH)
        files[f"node-{k}.pub"] = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    return files
