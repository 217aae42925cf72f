"""Security of connections: addresses, certificates and the keys of nodes."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmfl.deployment.programs import Certificates, require_flower
from mmfl.errors import UserError, shorten

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

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
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not colon or not host or not port.isdecimal() or (":" in host and not bracketed):
            raise UserError(f"address '{shorten(text)}': expected host:port, such as 127.0.0.1:8000.")
        if len(port) > 5 or not 0 < int(port) < 65536:
            raise UserError(f"address '{shorten(text)}': the port is {shorten(port)}; expected 1 to 65535.")
        host = host.strip("[]")
        if not _is_host(host):
            raise UserError(f"address '{shorten(text)}': '{shorten(host)}' cannot be the name of a host.")
        return cls(host, int(port))

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


@dataclass(frozen=True)
class Keys:
    """The folder that `mmfl keys` makes. The server needs all of it except `ca.key`, the authority's private key.

    A node needs `ca.crt` and its own `node-K.key`.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate of the authority, which all machines trust."""
        return self.folder / "ca.crt"

    @property
    def certificates(self) -> Certificates:
        """The server's certificates."""
        return Certificates(self.authority, self.folder / "server.crt", self.folder / "server.key")

    def node_key(self, k: int) -> Path:
        """The private key of node k."""
        return self.folder / f"node-{k}.key"

    @property
    def public_keys(self) -> list[Path]:
        """The public keys of nodes that may connect."""
        return sorted(self.folder.glob("*.pub"))

    @classmethod
    def open(cls, folder: Path) -> "Keys":
        """Opens a folder; refuses one without the server's certificates."""
        keys = cls(folder)
        made = keys.certificates
        for path in (made.authority, made.certificate, made.key):
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
    require_flower()
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
            _write(folder / name, content, private=name.endswith(".key"))
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

    def private(key: ec.EllipticCurvePrivateKey, format: PrivateFormat) -> bytes:
        return key.private_bytes(Encoding.PEM, format, NoEncryption())

    def start(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        name = NameOID.COMMON_NAME
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(name, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(name, issuer)]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        )

    def usage(signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    signer, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    identity = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    authority = (
        start("mmfl authority", "mmfl authority", signer.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(identity, critical=False)
        .sign(signer, hashes.SHA384())
    )
    certificate = (
        start("mmfl server", "mmfl authority", server.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity), critical=False)
        .sign(signer, hashes.SHA384())
    )
    files = {
        "ca.crt": authority.public_bytes(Encoding.PEM),
        "ca.key": private(signer, PrivateFormat.PKCS8),
        "server.crt": certificate.public_bytes(Encoding.PEM),
        "server.key": private(server, PrivateFormat.PKCS8),
    }
    for k in range(nodes):
        node = ec.generate_private_key(ec.SECP384R1())
        files[f"node-{k}.key"] = private(node, PrivateFormat.OpenSSH)
        files[f"node-{k}.pub"] = node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    return files


def _general_name(host: str) -> "GeneralName":
    """A host in the form that a certificate holds."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not host or any(character in host for character in " :/*"):
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise UserError(f"--server '{host}': expected a host name or an IP address, without a port.") from None


def _write(path: Path, content: bytes, private: bool) -> None:
    """Writes a new file; a private one can be read by its owner only."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
