"""RSA-OAEP with SHA3-512: what is encrypted is decrypted, and nothing else is."""

from __future__ import annotations

import hashlib
import os

import pytest

from kafka_index.stores.tiered.encryption import (
    RsaPrivateNumbers,
    decrypt_oaep,
    read_private_key,
)
from tests.support.tiered import setting


def encrypt_oaep(n: int, e: int, message: bytes) -> bytes:
    """Encrypt as RFC 8017, 7.1.1, has it."""
    size, hashed = (n.bit_length() + 7) // 8, hashlib.sha3_512(b"").digest()
    block = hashed + bytes(size - len(message) - 130) + b"\x01" + message
    seed = os.urandom(64)
    masked_block = masked(block, seed)
    encoded = b"\x00" + masked(seed, masked_block) + masked_block
    return pow(int.from_bytes(encoded, "big"), e, n).to_bytes(size, "big")


def masked(data: bytes, seed: bytes) -> bytes:
    counters = range(len(data) // 64 + 1)
    mask = b"".join(hashlib.sha3_512(seed + n.to_bytes(4, "big")).digest() for n in counters)
    return bytes(a ^ b for a, b in zip(data, mask, strict=False))


@pytest.fixture(scope="module")
def key() -> RsaPrivateNumbers:
    return read_private_key(setting("aiven-enc").keys[0][1])


@pytest.mark.parametrize("size", [0, 1, 32, 126])
def test_what_was_encrypted_is_decrypted(key: RsaPrivateNumbers, size: int) -> None:
    message = bytes(range(size))

    assert decrypt_oaep(key, encrypt_oaep(key.n, key.e, message)) == message


def test_a_message_that_was_altered_anywhere_is_refused(key: RsaPrivateNumbers) -> None:
    ciphertext = encrypt_oaep(key.n, key.e, b"x" * 32)
    for position in range(0, len(ciphertext), 17):
        altered = bytearray(ciphertext)
        altered[position] ^= 0x40

        assert decrypt_oaep(key, bytes(altered)) is None


@pytest.mark.parametrize("size", [0, 255, 257])
def test_a_message_of_another_size_is_refused(key: RsaPrivateNumbers, size: int) -> None:
    assert decrypt_oaep(key, bytes(size)) is None


def test_no_part_of_a_key_is_printed(key: RsaPrivateNumbers) -> None:
    assert repr(key) == "RsaPrivateNumbers()"
