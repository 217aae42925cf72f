"""Why a server cannot be reached, in words: who answers at an address, and whether it is the right one."""

import http.client
import socket
import ssl
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from mmfl.deployment.security import Address

_SECONDS = 5.0  # to connect


@dataclass(frozen=True)
class ConnectionProblem:
    """What is wrong with a connection, and what to do. A `lasting` one does not go away by waiting."""

    text: str
    lasting: bool


def find_problem(server: Address, root: Path | None) -> ConnectionProblem | None:
    """What keeps this machine from connecting; None if it is nothing that can be seen from here.

    With the certificate `root` the line is to be encrypted, and without it in plaintext.
    """
    try:
        with socket.create_connection((server.host, server.port), timeout=_SECONDS) as line:
            return _plaintext_problem(line, server) if root is None else _encryption_problem(line, server, root)
    except socket.gaierror:
        return ConnectionProblem(f"the host '{server.host}' is not known here", lasting=False)
    except ConnectionRefusedError:
        return ConnectionProblem(f"nobody listens at {server}; is `mmfl link` running there?", lasting=False)
    except OSError as error:
        reason = error.strerror or "no answer"
        return ConnectionProblem(
            f"{server} cannot be reached ({reason}); is there a firewall in between?", lasting=False
        )


def is_for_nodes(server: Address, root: Path | None) -> bool:
    """Whether an address is where nodes connect, and runs cannot be started."""
    try:
        if root is None:
            line = http.client.HTTPConnection(server.host, server.port, timeout=_SECONDS)
        else:
            context = ssl.create_default_context(cafile=str(root))
            line = http.client.HTTPSConnection(server.host, server.port, timeout=_SECONDS, context=context)
        with closing(line):
            line.request("POST", "/", b"")
            response = line.getresponse()
            return response.status == http.client.FORBIDDEN and b"for nodes only" in response.read(1000)
    except (OSError, http.client.HTTPException):
        return False


def _plaintext_problem(line: socket.socket, server: Address) -> ConnectionProblem | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(line, server_hostname=server.host).close()
    except (ssl.SSLError, OSError):
        return None  # not encrypted, as it should be
    return ConnectionProblem(
        f"the server at {server} takes encrypted connections only; expected --root-certificates ca.crt, and for a node "
        "--key node-K.key (`mmfl keys make` makes them)",
        lasting=True,
    )


def _encryption_problem(line: socket.socket, server: Address, root: Path) -> ConnectionProblem | None:
    context = ssl.create_default_context(cafile=str(root))
    try:
        context.wrap_socket(line, server_hostname=server.host).close()
    except ssl.SSLCertVerificationError as error:
        return ConnectionProblem(
            f"the certificate of the server at {server} is not accepted ({error.verify_message}); expected the ca.crt "
            "of its keys, and a host that `mmfl keys make --server` was given",
            lasting=True,
        )
    except TimeoutError:
        return ConnectionProblem(f"{server} accepts a connection, but does not answer", lasting=False)
    except (ssl.SSLError, ConnectionError):
        return ConnectionProblem(
            f"what answers at {server} is not encrypted: the link was started without --keys, or this is another "
            "program; expected the port where `mmfl link` says that nodes connect",
            lasting=True,
        )
    return None
