"""Small files beside a log, written whole."""

from __future__ import annotations

import os

from kafka_index.storage import AtomicFile, publish_error

_MODE = 0o644


def write_small_file(
    path: str, data: bytes, *, replace: bool = False, durable: bool = True
) -> None:
    """Write a file.

    Parameters
    ----------
    path : str
        Of the file.
    data : bytes
        All of it.
    replace : bool
        Write it under another name first, and give it its own at once.
    durable : bool
        Wait for the disk.

    Raises
    ------
    PublishError
        It cannot be written.
    """
    if replace:
        with AtomicFile(path, scratch_path=f"{path}.tmp") as file:
            file.write(data)
            file.commit(durable=durable)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, _MODE)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise publish_error(error, path, "write the file") from error
