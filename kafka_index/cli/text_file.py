"""A small text file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Self

from kafka_index.errors import InputError
from kafka_index.storage import local_path, publish_error


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
        folder, name = os.path.split(self._path)
        # One name for all runs, so that what a killed one leaves is used up by the next.
        self._scratch = os.path.join(folder, f".{name}.tmp")
        try:
            self._file = open(self._scratch, "w", encoding="utf-8")  # noqa: SIM115, closed on leaving
        except OSError as error:
            raise publish_error(error, self._path, "write the file") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # what could not be written has been told
            self._file.close()
        with contextlib.suppress(FileNotFoundError):  # it has its name by now
            os.unlink(self._scratch)

    def write(self, text: str) -> None:
        """Write the text and let the file appear.

        Raises
        ------
        PublishError
            It cannot be written; an older file is as it was.
        """
        try:
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._scratch, self._path)
        except OSError as error:
            raise publish_error(error, self._path, "write the file") from error
