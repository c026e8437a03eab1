"""An object that is open for reading: ranges and streams of one version of it.

A body that breaks off is continued by the library. Every request has If-Match, so that bytes of
two versions never mix.
"""

from __future__ import annotations

from typing import Any, cast

import obstore
from obstore import exceptions

from kafka_index.stores import read_ahead
from kafka_index.stores.object_errors import (
    BEYOND_END,
    LIBRARY_ERRORS,
    is_not_found,
    read_error,
    reason_of,
)
from kafka_index.stores.remote_file import RemoteFile
from kafka_index.stores.repeats import repeated
from kafka_index.stores.store import FileInfo
from kafka_index.stores.uris import split_uri


class RemoteObject(RemoteFile):
    """An object that is open for reading."""

    _NOUN = "object"
    _WRONG_LENGTH = "the store returned another number of bytes"

    def __init__(self, store: Any, info: FileInfo) -> None:
        super().__init__(info)
        self._store = store
        self._key = split_uri(info.path)[1]

    def changed(self) -> str | None:
        """Return how the object differs from the one opened; None when it does not."""
        try:
            now = repeated(lambda: obstore.head(self._store, self._key))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                return "it was removed"
            raise read_error(error, self.path, "read the object") from None
        if now["size"] != self.size_bytes or (now["e_tag"] or "") != self._info.version:
            return "it was replaced"
        return None

    def _request(self, position_bytes: int, size_bytes: int) -> memoryview:
        options: dict[str, Any] = {"range": (position_bytes, position_bytes + size_bytes)}
        if self._info.version:
            options["if_match"] = self._info.version
        try:
            with read_ahead.request_slots:
                return cast("memoryview", repeated(lambda: self._get(options)))
        except exceptions.PreconditionError:
            raise self._changed_error("it was replaced", position_bytes) from None
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise self._changed_error("it was removed", position_bytes) from None
            if BEYOND_END in reason_of(error).text:
                raise self._changed_error("it was cut", position_bytes) from None
            raise read_error(error, self.path, "read the object", position_bytes) from None

    def _get(self, options: dict[str, Any]) -> Any:
        return obstore.get(self._store, self._key, options=options).bytes()
