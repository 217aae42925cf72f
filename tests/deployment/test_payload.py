"""Payloads: whatever bytes come, they are read or refused."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmfl.deployment.payload import InvalidPayloadError, Payload


@given(st.binary(max_size=200))
def test_bytes_from_anywhere_are_read_or_refused(packed):
    with contextlib.suppress(InvalidPayloadError):
        Payload.unpack(packed)


@given(st.integers(0, 300), st.integers(0, 255))
def test_a_payload_with_a_byte_changed_is_read_or_refused(place, byte):
    packed = bytearray(Payload({"trained": [["a", 1, 0.5, 3, 0.1, None]]}, {"update.a.1": torch.ones(16)}).pack())
    packed[place % len(packed)] = byte
    with contextlib.suppress(InvalidPayloadError):
        read = Payload.unpack(bytes(packed))
        read.rows("trained", str, int, float, int, float, float | None)
        read.vector("update.a.1", 16)


def test_rows_must_have_the_kinds_that_were_agreed():
    payload = Payload({"a": [["x", 1]], "b": [[True, 1.0]], "c": "text", "d": [["x"]], "e": [["x", None]]})
    assert payload.rows("a", str, int) == [("x", 1)]
    assert payload.rows("e", str, float | None) == [("x", None)]
    assert payload.rows("nothing", str) == []
    wrong = [("a", (str, str)), ("b", (int, float)), ("b", (float, float)), ("c", (str,)), ("d", (str, int))]
    for name, kinds in wrong:
        with pytest.raises(InvalidPayloadError, match=f"'{name}' does not read"):
            payload.rows(name, *kinds)
