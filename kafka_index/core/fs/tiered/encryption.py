"""Encrypted segments: key pairs from files, data keys, and AES-256-GCM.

Each process reads the key files that it needs; key material is in no option, report or message.
Data keys are encrypted by RSA-OAEP with SHA3-512, which the library refuses to combine.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka_index.core.errors import CorruptObjectError, InputError
from kafka_index.core.fs.tiered.manifest import EncryptedDataKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_DATA_KEY_BYTES = 32
_IV_BYTES = 12
_TAG_BYTES = 16
#: What encryption adds to a piece.
OVERHEAD_BYTES = _IV_BYTES + _TAG_BYTES
_OPTION = "--tiered-key"
_HASH_BYTES = hashlib.sha3_512().digest_size
_EMPTY_LABEL_HASH = hashlib.sha3_512(b"").digest()


@dataclass(frozen=True, slots=True)
class RsaPrivateNumbers:
    """An RSA private key, of which no part is ever printed.

    `n` and `e` are modulus and public exponent, `p` and `q` the primes, `d_p` and `d_q` the private
    exponent modulo p - 1 and q - 1, and `q_inverse` the inverse of q modulo p.
    """

    n: int = field(repr=False)
    e: int = field(repr=False)
    p: int = field(repr=False)
    q: int = field(repr=False)
    d_p: int = field(repr=False)
    d_q: int = field(repr=False)
    q_inverse: int = field(repr=False)


def decrypt_oaep(key: RsaPrivateNumbers, ciphertext: bytes) -> bytes | None:
    """Decrypt a message; None where it was not encrypted for this key, or was altered.

    All checks of the padding are made and answered together, as which of them failed would help an
    attacker (Manger 2001); the exponentiation is blinded, as ``pow`` takes no constant time.
    """
    size = (key.n.bit_length() + 7) // 8
    number = int.from_bytes(ciphertext, "big")
    if len(ciphertext) != size or number >= key.n or size < 2 * _HASH_BYTES + 2:
        return None
    encoded = _decrypt_number(key, number).to_bytes(size, "big")
    masked_seed, masked_block = encoded[1 : 1 + _HASH_BYTES], encoded[1 + _HASH_BYTES :]
    seed = _xor(masked_seed, _mgf1(masked_block, _HASH_BYTES))
    block = _xor(masked_block, _mgf1(seed, len(masked_block)))
    fits = hmac.compare_digest(block[:_HASH_BYTES], _EMPTY_LABEL_HASH)
    fits &= encoded[0] == 0
    # The whole block is looked at, wherever the message starts.
    before, start, is_zeros = True, len(block), True
    for position in range(_HASH_BYTES, len(block)):
        is_one = block[position] == 1
        start = position + 1 if before and is_one else start
        before &= not is_one
        is_zeros &= not before or block[position] == 0
    fits &= is_zeros and not before
    return block[start:] if fits else None


def _decrypt_number(key: RsaPrivateNumbers, number: int) -> int:
    blinding = secrets.randbelow(key.n - 2) + 2
    blinded = number * pow(blinding, key.e, key.n) % key.n
    # By the primes (RFC 8017, 5.1.2): four times as fast as by the modulus.
    by_p, by_q = pow(blinded, key.d_p, key.p), pow(blinded, key.d_q, key.q)
    joined = by_q + key.q * ((by_p - by_q) * key.q_inverse % key.p)
    return joined * pow(blinding, -1, key.n) % key.n


def _mgf1(seed: bytes, size: int) -> bytes:
    blocks = (
        hashlib.sha3_512(seed + counter.to_bytes(4, "big")).digest()
        for counter in range(-(-size // _HASH_BYTES))
    )
    return b"".join(blocks)[:size]


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class KeyRing:
    """The key pairs of a process, PEM files with a private key by id, read on first use."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(paths)
        self._keys: dict[str, RsaPrivateNumbers] = {}
        self._lock = threading.Lock()

    def open(self, encrypted: EncryptedDataKey, manifest_path: str) -> Decryption:
        """Decrypt the data key of a segment.

        Raises `InputError` if there is no key pair of this id, or its file cannot be read, and
        `CorruptObjectError` if the data key was encrypted with another key pair, or altered.
        """
        path = self._paths.get(encrypted.key_id)
        if path is None:
            raise InputError(
                f"the segment is encrypted with the key pair {encrypted.key_id}: "
                f"give its private key, {_OPTION} {encrypted.key_id}=FILE",
                path=manifest_path,
            )
        with self._lock:
            key = self._keys.get(encrypted.key_id)
            if key is None:
                key = self._keys[encrypted.key_id] = read_private_key(path)
        data_key = decrypt_oaep(key, encrypted.data_key)
        if data_key is None or len(data_key) != _DATA_KEY_BYTES:
            raise CorruptObjectError(
                "the data key of the manifest cannot be decrypted: the key pair "
                f"{encrypted.key_id} is not the one of {path}, or the manifest was altered",
                path=manifest_path,
                hint=f"check the file of {_OPTION} {encrypted.key_id}=",
            )
        return Decryption(data_key, encrypted.aad)


class Decryption:
    """Decrypts the chunks and indexes of one segment, with an AES key of 32 bytes.

    `aad` is the additional authenticated data.
    """

    def __init__(self, data_key: bytes, aad: bytes) -> None:
        self._cipher = _cipher(data_key)
        self._aad = aad

    def decrypt(self, piece: bytes | memoryview) -> bytes:
        """Decrypt an IV, a ciphertext and a tag.

        Raises `ValueError` if the tag does not fit: the bytes were altered, or the key is another
        one.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415, an extra

        if len(piece) < OVERHEAD_BYTES:
            raise ValueError(f"{len(piece)} bytes are too few for an encrypted piece")
        try:
            return self._cipher.decrypt(piece[:_IV_BYTES], piece[_IV_BYTES:], self._aad)
        except InvalidTag:
            raise ValueError(
                "its GCM tag does not fit: it was altered, or encrypted with another key"
            ) from None


def read_private_key(path: str) -> RsaPrivateNumbers:
    """Read an RSA private key (PEM, PKCS #8 or PKCS #1, without a passphrase).

    Raises `InputError` if the file cannot be read, or holds no such key, or the extra is not
    installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            load_pem_private_key,
        )
    except ImportError as error:
        raise _missing(path, error) from error
    try:
        with open(path, "rb") as file:
            pem = file.read()
    except OSError as error:
        raise InputError(f"cannot read the private key: {error.strerror}", path=path) from error
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        # The library's text is not shown: it may quote the file.
        raise InputError(
            "not a private key that can be read",
            path=path,
            expected="PEM, PKCS #8, without a passphrase",
        ) from None
    if not isinstance(key, RSAPrivateKey):
        raise InputError("not an RSA private key", path=path)
    numbers = key.private_numbers()
    public = numbers.public_numbers
    return RsaPrivateNumbers(
        public.n, public.e, numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp
    )


def _cipher(data_key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415, an extra

    return AESGCM(data_key)


def _missing(path: str, error: ImportError) -> InputError:
    return InputError(
        f"the library for encrypted segments is not installed ({error.name})",
        path=path,
        hint="pip install 'kafka-index[tiered]'",
    )
