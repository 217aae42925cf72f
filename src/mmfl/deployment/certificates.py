"""The files of `mmfl keys`: an authority, the server's certificate for a year, and a key pair for each node."""

import datetime
import ipaddress
from collections.abc import Sequence
from contextlib import suppress

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mmfl.errors import UserError

_SERVER_DAYS = 365
_AUTHORITY_DAYS = 3650  # all nodes have its certificate
_UNUSED = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")


def make_authority() -> dict[str, bytes]:
    """A new authority: its certificate and its private key."""
    key = ec.generate_private_key(ec.SECP384R1())
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = _certificate("mmfl authority", key.public_key(), key, _AUTHORITY_DAYS, True, identity)
    return {"ca.crt": certificate, "ca.key": _private(key, PrivateFormat.PKCS8)}


def make_server(authority_key: bytes, hosts: Sequence[str]) -> dict[str, bytes]:
    """A new certificate for a server with these host names, signed by the authority, and its private key."""
    authority, key = _load_key(authority_key), ec.generate_private_key(ec.SECP384R1())
    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    extensions = (
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([_general_name(host) for host in hosts]),
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity),
    )
    certificate = _certificate("mmfl server", key.public_key(), authority, _SERVER_DAYS, False, *extensions)
    return {"server.crt": certificate, "server.key": _private(key, PrivateFormat.PKCS8)}


def make_node(name: str) -> dict[str, bytes]:
    """A new key pair of a node."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    return {f"{name}.key": _private(key, PrivateFormat.OpenSSH), f"{name}.pub": public}


def hosts_of(certificate: bytes) -> list[str]:
    """The names and addresses of a server that its certificate lists."""
    names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(each.value) for each in names.value]


def end_of(certificate: bytes) -> datetime.datetime:
    """When a certificate ceases to be valid."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def is_issued_by(authority: bytes, authority_key: bytes) -> bool:
    """Whether a private key is that of an authority's certificate."""
    return x509.load_pem_x509_certificate(authority).public_key() == _load_key(authority_key).public_key()


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic curve")
    return key


def _private(key: ec.EllipticCurvePrivateKey, format: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, format, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    with suppress(ValueError):
        if host and not set(host) & set(" :/*"):
            return x509.DNSName(host)
    raise UserError(f"--server '{host}': expected a host name or an IP address, without a port.")


def _certificate(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    authority: ec.EllipticCurvePrivateKey,
    days: int,
    is_authority: bool,
    *extensions: x509.ExtensionType,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        **dict.fromkeys((*_UNUSED, "encipher_only", "decipher_only"), False),
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("mmfl authority"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM)
