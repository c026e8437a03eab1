"""Encrypted segments: RSA key pairs from files, data keys, and AES-256-GCM.

Each process reads the key files that it needs; options, reports and messages never contain key
material. Data keys are encrypted by RSA-OAEP with SHA3-512.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka_index.core.errors import CorruptObjectError, InputError
from kafka_index.core.fs.tiered.manifest import EncryptedDataKey

if TYPE_CHECKING:
    from Crypto.Cipher.PKCS1_OAEP import PKCS1OAEP_Cipher

_DATA_KEY_BYTES = 32
_IV_BYTES = 12
_TAG_BYTES = 16
#: Size that encryption adds to a chunk.
OVERHEAD_BYTES = _IV_BYTES + _TAG_BYTES
_OPTION = "--tiered-key"


class KeyRing:
    """The private keys (PEM files) of a process by ID, read on first use."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(paths)
        self._keys: dict[str, PKCS1OAEP_Cipher] = {}
        self._lock = threading.Lock()

    def open(self, encrypted: EncryptedDataKey, manifest_path: str) -> Decryption:
        """Decrypt the data key of a segment.

        Raises `InputError` if there is no key pair with this ID or its file cannot be read, and
        `CorruptObjectError` if the data key is altered or encrypted with another key pair.
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
        try:
            return Decryption(key.decrypt(encrypted.data_key), encrypted.aad)
        except ValueError:
            raise CorruptObjectError(
                "the data key of the manifest cannot be decrypted: the key pair "
                f"{encrypted.key_id} is not the one of {path}, or the manifest was altered",
                path=manifest_path,
                hint=f"check the file of {_OPTION} {encrypted.key_id}=",
            ) from None


class Decryption:
    """Decrypts the chunks and indexes of one segment, with an AES key of 32 bytes.

    `aad` is the additional authenticated data. Raises `ValueError` for a key of another size.
    """

    def __init__(self, data_key: bytes, aad: bytes) -> None:
        if len(data_key) != _DATA_KEY_BYTES:
            raise ValueError(f"an AES key of {len(data_key)} bytes")
        self._data_key = data_key
        self._aad = aad

    def decrypt(self, chunk: bytes | memoryview) -> bytes:
        """Decrypt an IV, a ciphertext and a tag.

        Raises `ValueError` if the tag does not match: the bytes were altered or the key is wrong.
        """
        from Crypto.Cipher import AES  # noqa: PLC0415, an extra

        if len(chunk) < OVERHEAD_BYTES:
            raise ValueError(f"{len(chunk)} bytes are too few for an encrypted chunk")
        cipher = AES.new(self._data_key, AES.MODE_GCM, nonce=chunk[:_IV_BYTES])
        cipher.update(self._aad)
        try:
            return cipher.decrypt_and_verify(chunk[_IV_BYTES:-_TAG_BYTES], chunk[-_TAG_BYTES:])
        except ValueError:
            raise ValueError(
                "its GCM tag does not fit: it was altered, or encrypted with another key"
            ) from None


def read_private_key(path: str) -> PKCS1OAEP_Cipher:
    """Read an RSA private key (PEM, PKCS #8 or PKCS #1, without a passphrase).

    Raises `InputError` if the file cannot be read or has no such key, or if the extra is not
    installed.
    """
    try:
        from Crypto.Cipher import PKCS1_OAEP  # noqa: PLC0415
        from Crypto.Hash import SHA3_512  # noqa: PLC0415
        from Crypto.PublicKey import RSA  # noqa: PLC0415
    except ImportError as error:
        raise InputError(
            f"the library for encrypted segments is not installed ({error.name})",
            path=path,
            hint="pip install 'kafka-index[tiered]'",
        ) from error
    try:
        with open(path, "rb") as file:
            key = RSA.import_key(file.read())
    except OSError as error:
        raise InputError(f"cannot read the private key: {error.strerror}", path=path) from error
    except (ValueError, IndexError, TypeError):
        key = None
    if key is None or not key.has_private():
        # The library's message is not shown, because it may quote the key.
        raise InputError(
            "not an RSA private key that can be read",
            path=path,
            expected="PEM, PKCS #8, without a passphrase",
        )
    return PKCS1_OAEP.new(key, hashAlgo=SHA3_512)
