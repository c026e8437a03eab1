"""Objects of S3, Google Cloud Storage and Azure, through obstore (the Rust crate object_store).

Retries of single requests are the library's. An object that was opened is read with If-Match, so
that bytes of two versions never mix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore import exceptions
from obstore.store import from_url

from kafka_index.errors import InputError, KafkaIndexError, PublishError, ReadError
from kafka_index.stores.options import StorageOptions
from kafka_index.stores.store import LISTING_SCHEMA, Bytes, DirectoryEntry, FileInfo
from kafka_index.stores.uris import split_uri

#: Requests that a process has under way at a time.
MAX_REQUESTS = 16
#: Bytes of a request of a stream; a stream holds `STREAM_PIECES` of them at most.
PIECE_BYTES = 8 << 20
STREAM_PIECES = 4
#: Ranges with a gap of at most this are read as one: a request costs more than these bytes.
MAX_GAP_BYTES = 64 << 10

_LIST_CHUNK = 1000


class ObjectStore:
    """A bucket or container.

    Parameters
    ----------
    root : str
        ``s3://bucket`` and the like.
    options : StorageOptions
        Under the names of obstore; they win over the environment.
    """

    has_rename = False

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        try:
            self._store: Any = from_url(root, config=options.resolve() or None)
        except (exceptions.BaseError, ValueError) as error:
            raise _error(error, root, "open the store") from error

    def info(self, path: str) -> FileInfo:
        """Return an object's size, time and ETag."""
        try:
            return self._info(obstore.head(self._store, _key(path)))
        except exceptions.BaseError as error:
            raise _error(error, path, "read the object") from error

    def open(self, path: str, info: FileInfo | None = None) -> RemoteObject:
        """Open an object, of the version that `info` names."""
        try:
            found = self.info(path) if info is None else info
        except FileNotFoundError as error:
            raise InputError("cannot open the object: it does not exist", path=path) from error
        return RemoteObject(self._store, found)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small object, or its first ones."""
        try:
            if max_bytes is None:
                return bytes(obstore.get(self._store, _key(path)).bytes())
            return bytes(obstore.get_range(self._store, _key(path), start=0, length=max_bytes))
        except exceptions.BaseError as error:
            raise _error(error, path, "read the object") from error

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the objects and common prefixes right below a prefix."""
        try:
            found = obstore.list_with_delimiter(self._store, _key(path) or None)
        except exceptions.BaseError as error:
            raise _error(error, path, "list the objects") from error
        entries = [
            DirectoryEntry(f"{self._root}/{prefix}", is_directory=True)
            for prefix in found["common_prefixes"]
        ]
        for each in found["objects"]:
            info = self._info(each)
            entries.append(
                DirectoryEntry(
                    info.path,
                    size_bytes=info.size_bytes,
                    mtime_ns=info.mtime_ns,
                    version=info.version,
                )
            )
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str, *, start_after: str = "") -> Iterator[pa.RecordBatch]:
        """Yield the objects below a prefix."""
        prefix = _key(path)
        below = f"{prefix}/" if prefix else ""
        pages = obstore.list(
            self._store,
            prefix or None,
            offset=below + start_after if start_after else None,
            chunk_size=_LIST_CHUNK,
            return_arrow=True,
        )
        try:
            for page in pages:
                rows = pa.record_batch(page)
                yield pa.record_batch(
                    [
                        pc.utf8_slice_codeunits(rows["path"].cast(pa.string()), len(below)),
                        rows["size"].cast(pa.int64()),
                        rows["last_modified"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64()),
                        rows["e_tag"].cast(pa.string()).fill_null(""),
                    ],
                    schema=LISTING_SCHEMA,
                )
        except exceptions.BaseError as error:
            raise _error(error, path, "list the objects") from error

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write an object whole."""
        mode = "create" if if_absent else "overwrite"
        try:
            obstore.put(self._store, _key(path), data, mode=mode)
        except exceptions.AlreadyExistsError:
            return False
        except exceptions.BaseError as error:
            raise _publish_error(error, path, "write the object") from error
        return True

    def rename(self, source: str, target: str) -> None:
        """Copy an object on the server, and delete the first one."""
        try:
            obstore.copy(self._store, _key(source), _key(target), overwrite=True)
            obstore.delete(self._store, _key(source))
        except (exceptions.BaseError, FileNotFoundError) as error:
            raise _publish_error(error, target, "put the object in place") from error

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects."""
        keys = [_key(path) for path in paths]
        try:
            if keys:
                obstore.delete(self._store, keys)
        except FileNotFoundError:
            return
        except exceptions.BaseError as error:
            raise _publish_error(error, f"{self._root}/{keys[0]}", "delete the object") from error

    def _info(self, meta: Any) -> FileInfo:
        return FileInfo(
            f"{self._root}/{meta['path']}",
            meta["size"],
            int(meta["last_modified"].timestamp() * 1000) * 1_000_000,
            meta["e_tag"] or "",
        )


class RemoteObject:
    """An object that is open for reading."""

    def __init__(self, store: Any, info: FileInfo) -> None:
        self._store = store
        self._info = info
        self._key = _key(info.path)

    @property
    def path(self) -> str:
        """Its URI."""
        return self._info.path

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self._info.size_bytes

    @property
    def mtime_ns(self) -> int:
        """Its modification time, nanoseconds since the epoch."""
        return self._info.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes, fewer only at the end of the object."""
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        end = min(position_bytes + size_bytes, self.size_bytes)
        if end <= position_bytes:
            return np.empty(0, np.uint8)
        options: dict[str, Any] = {"range": (position_bytes, end)}
        if self._info.version:
            options["if_match"] = self._info.version
        try:
            data = obstore.get(self._store, self._key, options=options).bytes()
        except FileNotFoundError as error:
            raise self._changed("it was removed", position_bytes) from error
        except exceptions.PreconditionError as error:
            raise self._changed("it was replaced", position_bytes) from error
        except exceptions.BaseError as error:
            raise _error(error, self.path, "read the object", position_bytes) from error
        found: Bytes = np.frombuffer(data, np.uint8)
        if len(found) != end - position_bytes:
            raise ReadError(
                "the store returned another number of bytes",
                path=self.path,
                position_bytes=position_bytes,
                expected=end - position_bytes,
                found=len(found),
            )
        return found

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges."""
        joined: list[list[int]] = []
        for start, end in zip(starts, ends, strict=True):
            if joined and start - joined[-1][1] <= MAX_GAP_BYTES:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        if len(joined) == 1:
            pieces = [self.read_at(joined[0][0], joined[0][1] - joined[0][0])]
        else:
            pieces = list(
                _requests().map(lambda piece: self.read_at(piece[0], piece[1] - piece[0]), joined)
            )
        firsts = [piece[0] for piece in joined]
        found = []
        for start, end in zip(starts, ends, strict=True):
            number = int(np.searchsorted(firsts, start, "right")) - 1
            found.append(pieces[number][start - firsts[number] : end - firsts[number]])
        return found

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, a few pieces ahead of the caller."""
        waiting: deque[Future[Bytes]] = deque()
        at = start_bytes
        try:
            while waiting or at < self.size_bytes:
                while at < self.size_bytes and len(waiting) < STREAM_PIECES - 1:
                    waiting.append(_requests().submit(self.read_at, at, PIECE_BYTES))
                    at += PIECE_BYTES
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def changed(self) -> str | None:
        """Return how the object differs from the one opened; None when it does not."""
        try:
            now = obstore.head(self._store, self._key)
        except FileNotFoundError:
            return "it was removed"
        except exceptions.BaseError as error:
            raise _error(error, self.path, "read the object") from error
        if now["size"] != self.size_bytes or (now["e_tag"] or "") != self._info.version:
            return "it was replaced"
        return None

    def close(self) -> None:
        """Do nothing: connections belong to the store."""

    def _changed(self, how: str, position_bytes: int) -> ReadError:
        return ReadError(
            f"the object changed while it was read: {how}",
            path=self.path,
            position_bytes=position_bytes,
            hint="run again when nothing writes to it",
        )


@cache
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="store")


def _key(path: str) -> str:
    return split_uri(path)[1]


def _error(
    error: Exception, path: str, action: str, position_bytes: int | None = None
) -> KafkaIndexError:
    # The library's text is not shown: it may hold a signed URL.
    return ReadError(
        f"cannot {action}: {type(error).__name__}", path=path, position_bytes=position_bytes
    )


def _publish_error(error: Exception, path: str, action: str) -> PublishError:
    return PublishError(f"cannot {action}: {type(error).__name__}", path=path)
