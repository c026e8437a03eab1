"""The bytes of the small files that a broker reads when it starts."""

from __future__ import annotations

import os

from kafka_index.errors import InputError, is_retriable
from kafka_index.startup.prediction import OfflineAtOnceError
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.inputs import refuse_linked_out


def read_root_file(path: str, *, may_dangle: bool = True) -> bytes | None:
    """Return the bytes of a file; None where there is none.

    Parameters
    ----------
    path : str
        Its path or URI.
    may_dangle : bool
        Whether a link to nothing counts as no file: not where a broker creates one first.

    Raises
    ------
    OfflineAtOnceError
        It is not a file: a broker that reads it gets an ``IOException``.
    InputError
        This process may not read it, which says nothing of a broker.
    """
    if not is_remote(path):
        refuse_linked_out(path, any_name=True)
    try:
        if is_remote(path):
            return store_of(path).read(path)
        if os.path.exists(path) and not os.path.isfile(path):
            kind = "a directory" if os.path.isdir(path) else "not a regular file"
            raise OfflineAtOnceError(f"{os.path.basename(path)} is {kind}", path=path)
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        if os.path.islink(path) and not may_dangle:
            raise OfflineAtOnceError("a link to nothing", path=path) from None
        return None
    except OSError as error:
        if is_retriable(error):
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error
        raise OfflineAtOnceError(f"cannot be read: {error.strerror}", path=path) from error
