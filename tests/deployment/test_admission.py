"""Who the proxy takes for which node, and who makes room for whom."""

import asyncio
import base64
import os
from datetime import UTC, datetime, timedelta

import pytest
from traces import needs_flower

from conftest import run_coroutine
from mmfl.deployment.admission import KeyRing, Places
from mmfl.deployment.connection import Head
from mmfl.deployment.security import Keys, make_keys

pytestmark = needs_flower


@pytest.fixture
def keys(tmp_path) -> Keys:
    return make_keys(tmp_path / "keys", ["localhost"], ["0", "1"])


def signed(keys: Keys, shown: str, signer: str = "", age: float = 0.0) -> Head:
    """A request that shows one key and is signed by another, some seconds ago, as Flower signs it."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    private = {
        name: load_ssh_private_key((keys.folder / f"{name}.key").read_bytes(), None)
        for name in (shown, signer or shown)
    }
    public = private[shown].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    time = (datetime.now(UTC) - timedelta(seconds=age)).isoformat().encode()
    signature = private[signer or shown].sign(time, ec.ECDSA(SHA256()))
    values = {b"public-key": base64.b64encode(public), b"timestamp": time, b"signature": base64.b64encode(signature)}
    return Head(b"POST / HTTP/1.1", tuple((b"flwr-" + name, value) for name, value in values.items()))


def looking_again(ring: KeyRing) -> KeyRing:
    """As if a second had passed since its last look at the folder."""
    ring._looked = -1e9
    return ring


def test_a_request_is_of_the_node_whose_key_signed_it_just_now(keys):
    ring = KeyRing(keys.folder, None, None)
    assert ring.name(signed(keys, "node-0")) == "node-0"
    assert ring.name(signed(keys, "node-1", age=200)) == "node-1"
    assert ring.name(signed(keys, "node-0", signer="node-1")) is None
    assert ring.name(signed(keys, "node-0", age=400)) is None
    assert ring.name(signed(keys, "node-0", age=-60)) is None
    assert ring.name(Head(b"POST / HTTP/1.1", ())) is None
    good = signed(keys, "node-0").headers
    for n in range(3):
        for value in (b"", b"x", b"\xff", good[n - 1][1]):
            spoiled = [*good[:n], (good[n][0], value), *good[n + 1 :]]
            assert ring.name(Head(b"POST / HTTP/1.1", tuple(spoiled))) is None


def test_keys_that_are_revoked_or_added_count_from_the_next_look_on(keys):
    ring = KeyRing(keys.folder, None, None)
    keys.revoke("node-0")
    keys.add("clinic", "0")
    os.utime(keys.folder, ns=(1, 1))  # a clock of the file system may be slower than this test
    assert looking_again(ring).name(signed(keys, "node-1")) == "node-1"
    assert ring.name(signed(keys, "clinic")) == "clinic"
    assert ring.name(signed(keys, "node-0")) is None


def test_a_renewed_certificate_is_shown_and_half_a_one_is_not(keys):
    ring = KeyRing(keys.folder, keys.certificate, keys.server_key)
    before = keys.server_key.read_bytes()
    keys.renew()
    new, certificate = keys.server_key.read_bytes(), keys.certificate
    keys.server_key.write_bytes(before)
    os.utime(certificate, ns=(1, 1))
    looking_again(ring).refresh()
    assert ring._versions[1] != 1  # it tries again
    keys.server_key.write_bytes(new)
    looking_again(ring).refresh()
    assert ring._versions[1] == 1


def test_visitors_make_room_for_visitors_and_nodes_for_nobody():
    async def work() -> None:
        places = Places(has_keys=True)
        node, *others = [asyncio.ensure_future(asyncio.sleep(99)) for _ in range(502)]
        places.enter(node, "10.0.0.1")
        assert places.admit(node, "node-0")
        for task in others:
            places.enter(task, "10.0.0.1")
        await asyncio.sleep(0)
        assert [task.cancelled() for task in others] == [True] + [False] * 500
        assert not node.cancelled()
        admitted = [places.admit(task, "node-0") for task in others[1:40]]
        assert admitted == [True] * 31 + [False] * 8  # of 32 connections of a key
        places.leave(node)
        assert places.admit(others[40], "node-0")
        for task in (node, *others):
            task.cancel()

    run_coroutine(work())
