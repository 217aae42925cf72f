"""Masks: what hides a node's vector, and cancels in the sum over all nodes. The arithmetic of secure aggregation.

Keys are agreed, shares made and texts encrypted by the functions of Flower's `flwr.common.secure_aggregation`. Two of
its functions have replacements here: Flower's generator reduces every seed to 32 bits, which can all be tried out, and
its rounding takes random numbers from numpy's global generator. Masks and rounding come from ChaCha20 instead.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray
from torch import Tensor

from mmfl.deployment.payload import InvalidPayloadError

Words = NDArray[np.unsignedinteger]
"""Whole numbers modulo 2^bits, which wrap around when they are added."""
_WORDS: Mapping[int, type[np.unsignedinteger]] = {16: np.uint16, 32: np.uint32}
_SIGNED: Mapping[int, torch.dtype] = {16: torch.int16, 32: torch.int32}
BITS = tuple(_WORDS)
"""How many bits a number may have on the way."""


@dataclass(frozen=True)
class Grid:
    """Real numbers as multiples of `step`, modulo 2^bits."""

    bits: int
    step: float

    @classmethod
    def covering(cls, bits: int, largest: float, nodes: int) -> "Grid":
        """The finest grid on which a sum of entries up to `largest` cannot overflow, although each node rounds."""
        return cls(bits, largest / (2 ** (bits - 1) - 1 - nodes))

    def round(self, values: Tensor, seed: bytes) -> Words:
        """Each value as one of its two neighbours on the grid, chosen at random so that it is right on average."""
        chance = keystream(seed, len(values), 32) / 2.0**32
        whole = np.floor(values.double().cpu().numpy() / self.step + chance)
        return whole.astype(np.int64).astype(_WORDS[self.bits])

    def values(self, words: Words) -> Tensor:
        """The numbers again, in double precision."""
        return torch.from_numpy(words.view(f"i{self.bits // 8}").astype(np.float64) * self.step)


def to_tensor(words: Words) -> Tensor:
    """The same bits as a tensor, to send."""
    return torch.from_numpy(words.view(f"i{words.itemsize}"))


def from_tensor(tensor: Tensor, length: int, bits: int) -> Words:
    """The words that a tensor of this length holds."""
    if tensor.shape != (length,) or tensor.dtype != _SIGNED[bits]:
        kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise InvalidPayloadError(f"a masked sum is {kind}; expected int{bits} [{length}]")
    return tensor.contiguous().numpy().view(_WORDS[bits])


def keystream(seed: bytes, length: int, bits: int) -> Words:
    """Words that look random to everyone without the seed: ChaCha20's stream. A seed is used for nothing else."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(length * bits // 8))
    return np.frombuffer(stream, dtype=_WORDS[bits])


def derive(secret: bytes, purpose: str) -> bytes:
    """A seed for one purpose, from which neither the secret nor the seeds for other purposes can be learned."""
    return HKDF(hashes.SHA256(), length=32, salt=None, info=purpose.encode()).derive(secret)


def pair_mask(own: str, seeds: Mapping[str, bytes], length: int, bits: int) -> Words:
    """The masks that a node shares with others: of two nodes one adds what the other subtracts."""
    total = np.zeros(length, dtype=_WORDS[bits])
    for other, seed in seeds.items():
        words = keystream(seed, length, bits)
        if own < other:
            total += words
        else:
            total -= words
    return total


def commitment(secret: bytes) -> str:
    """Tells whether a secret is the right one, without telling it."""
    return hashlib.sha256(b"mmfl commitment" + secret).hexdigest()


def public_text(key: ec.EllipticCurvePrivateKey) -> str:
    """The public part of a key, as a node sends it."""
    return to_text(key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint))


def read_public(text: str) -> ec.EllipticCurvePublicKey:
    """A public key from what another node sent."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), to_bytes(text))
    except ValueError:
        raise InvalidPayloadError("a public key cannot be read") from None


def to_text(data: bytes) -> str:
    """Bytes as text for a payload's fields."""
    return base64.b64encode(data).decode()


def to_bytes(text: object) -> bytes:
    """Bytes from a payload's field."""
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise InvalidPayloadError("a field is not base64") from None
