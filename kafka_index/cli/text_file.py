"""A small text file that appears whole or not at all."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from kafka_index.errors import InputError
from kafka_index.storage import AtomicFile, local_path


class TextFile:
    """Writes one text; a context manager, left without a text it leaves no file.

    Parameters
    ----------
    path : str
        Where to.

    Raises
    ------
    InputError
        The path is a folder.
    PublishError
        It cannot be written; found out here, before any work is done.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(local_path(path))
        if os.path.isdir(self._path):
            raise InputError("a folder, not a file", path=path, hint="name a file in it")
        if os.path.exists(self._path) and not os.path.isfile(self._path):
            raise InputError("not a regular file", path=path, hint="name another file")
        self._file = AtomicFile(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, traceback)

    def write(self, text: str) -> None:
        """Write the text and let the file appear.

        Raises
        ------
        PublishError
            It cannot be written; an older file is as it was.
        """
        self._file.write(text.encode())
        self._file.commit()
