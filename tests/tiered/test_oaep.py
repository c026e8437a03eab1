"""RSA-OAEP with SHA3-512: what is encrypted is decrypted, and nothing else is."""

from __future__ import annotations

import pytest

from kafka_index.stores.tiered.encryption import read_private_key
from kafka_index.stores.tiered.oaep import RsaPrivateNumbers, decrypt_oaep, encrypt_oaep
from tests.support.tiered import setting


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
