"""Objects of S3, Google Cloud Storage and Azure, through obstore (the Rust crate object_store).

Single requests are retried by the library; requests that it does not repeat, here.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore import exceptions

from kafka_index.errors import InputError
from kafka_index.stores import remote_file
from kafka_index.stores.object_config import ObjectConfig
from kafka_index.stores.object_errors import (
    BEYOND_END,
    LIBRARY_ERRORS,
    is_not_found,
    is_worth_repeating,
    not_found,
    publish_error,
    read_error,
    reason_of,
    repeated,
)
from kafka_index.stores.remote_file import RemoteFile
from kafka_index.stores.store import (
    LISTING_SCHEMA,
    DirectoryEntry,
    FileInfo,
    StorageOptions,
    split_uri,
)

# A page of S3: what is listed by path is not asked for again when the next one breaks off.
_ROWS_OF_PAGE = 1000
# A larger body may take longer to send than the silence that a read tolerates.
_MAX_QUICK_PUT_BYTES = 4 << 20
# S3's limit for a body of one request.
_MAX_PUT_BYTES = 5 << 30
#: Age of an object that a request may have written without an answer.
JUST_WRITTEN_S = 3600.0
_SECOND_NS = 1_000_000_000
# Whoever wants the ETag of what was put asks soon.
_MAX_WRITTEN = 16384


class ObjectStore:
    """A bucket or container, with a root such as ``s3://bucket``; options win over the environment.

    Raises `ConfigError` if an option or the environment is not valid.
    """

    has_rename = False

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        self._config = ObjectConfig.load(root, options)
        self._store = self._config.open(root)
        self._written: OrderedDict[str, FileInfo] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _upload_store(self) -> Any:
        return self._config.open(self._root, for_uploads=True)

    def info(self, path: str) -> FileInfo:
        """Return an object's size, time and ETag."""
        try:
            return self._info(repeated(lambda: obstore.head(self._store, _key(path))))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise not_found(path) from None
            raise read_error(error, path, "read the object") from None

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
            return bytes(repeated(lambda: self._get(path, max_bytes)))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise not_found(path) from None
            if max_bytes is not None and f"status code: {BEYOND_END}" in str(error):
                return b""  # an empty object has no first byte
            raise read_error(error, path, "read the object") from None

    def _get(self, path: str, max_bytes: int | None) -> Any:
        if max_bytes is None:
            return obstore.get(self._store, _key(path)).bytes()
        return obstore.get_range(self._store, _key(path), start=0, length=max_bytes)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the objects and common prefixes right below a prefix."""
        try:
            found = repeated(lambda: obstore.list_with_delimiter(self._store, _key(path) or None))
        except LIBRARY_ERRORS as error:
            raise read_error(error, path, "list the objects") from None
        entries = [
            DirectoryEntry(f"{self._root}/{prefix}", is_directory=True)
            for prefix in found["common_prefixes"]
        ]
        key = _key(path)
        for each in found["objects"]:
            if each["path"] == key:
                continue  # an object "key/", which other tools put to stand for the directory
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

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the objects below a prefix, by path, once all of them are listed.

        Empty objects ``key/``, which other tools put for directories, are rows named ``key``. Not
        all stores list by path: a directory bucket of S3 does not, nor Azure with directories.
        """
        prefix = _key(path)
        below = f"{prefix}/" if prefix else ""
        last: str | None = None
        found: list[pa.RecordBatch] = []

        def following() -> tuple[Any, pa.RecordBatch | None]:
            pages = obstore.list(
                self._store,
                prefix or None,
                offset=last,
                chunk_size=_ROWS_OF_PAGE,
                return_arrow=True,
            )
            return pages, next(pages, None)

        try:
            pages, page = repeated(following)
            while page is not None:
                rows = pa.record_batch(page)
                if rows.num_rows:
                    last = rows["path"][-1].as_py()
                    found.append(_rows(rows, len(below)))
                try:
                    page = next(pages, None)
                except LIBRARY_ERRORS as error:
                    if not is_worth_repeating(error):
                        raise
                    if not _are_sorted(found):
                        found.clear()
                        last = None
                    # Resume after the last page that arrived.
                    pages, page = repeated(following)
        except LIBRARY_ERRORS as error:
            raise read_error(error, path, "list the objects") from None
        if not _are_sorted(found):
            found = pa.Table.from_batches(found).sort_by("path").to_batches(_ROWS_OF_PAGE)
        found.reverse()
        while found:
            yield found.pop()

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write an object by one request, so that it is there whole or not at all.

        A repeated request may find what the one before it wrote: an object with these bytes that is
        younger than an hour counts as written.
        """
        size = memoryview(data).nbytes
        store = self._store if size <= _MAX_QUICK_PUT_BYTES else self._upload_store
        try:
            put = repeated(
                lambda: obstore.put(
                    store,
                    _key(path),
                    data,
                    mode="create" if if_absent else "overwrite",
                    use_multipart=size > _MAX_PUT_BYTES,
                )
            )
        except exceptions.AlreadyExistsError:
            return self._holds(path, data, size, within_s=JUST_WRITTEN_S)
        except LIBRARY_ERRORS as error:
            raise publish_error(error, path, "write the object") from None
        if put["e_tag"]:
            with self._lock:
                self._written[path] = FileInfo(path, size, 0, _quoted(put["e_tag"]))
                while len(self._written) > _MAX_WRITTEN:
                    self._written.popitem(last=False)
        return True

    def pop_written(self, path: str) -> FileInfo | None:
        """Return size and ETag of an object that was put a short while ago, once."""
        with self._lock:
            return self._written.pop(path, None)

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Write an object if it has the ETag of `info`: the store compares it."""
        mode = {"e_tag": info.version}
        try:
            repeated(
                lambda: obstore.put(self._store, _key(path), data, mode=mode, use_multipart=False)
            )
        except (exceptions.PreconditionError, FileNotFoundError):
            # A repeated request finds what the one before it wrote.
            return self._holds(path, data, len(data))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                return False
            raise publish_error(error, path, "write the object") from None
        return True

    def rename(self, source: str, target: str) -> None:
        """Copy an object on the server, and delete the first one."""
        try:
            repeated(lambda: obstore.copy(self._store, _key(source), _key(target), overwrite=True))
        except LIBRARY_ERRORS as error:
            raise publish_error(error, target, "put the object in place") from None
        self.delete([source])

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects."""
        keys = [_key(path) for path in paths]
        try:
            if keys:
                repeated(lambda: self._delete(keys))
        except LIBRARY_ERRORS as error:
            raise publish_error(error, f"{self._root}/{keys[0]}", "delete the object") from None

    def _delete(self, keys: list[str]) -> None:
        try:
            obstore.delete(self._store, keys)
        except FileNotFoundError:
            # Stores that delete one by one stop at the first that is missing.
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def _holds(
        self, path: str, data: bytes | memoryview, size: int, within_s: float | None = None
    ) -> bool:
        """Return whether an object has these bytes, and is younger than so many seconds."""
        try:
            found = self.info(path)
            if within_s is not None and found.mtime_ns < (time.time() - within_s) * _SECOND_NS:
                return False
            return found.size_bytes == size and self.read(path) == data
        except FileNotFoundError:
            return False

    def _info(self, meta: Any) -> FileInfo:
        # Whole seconds, as a HEAD has them, whether a listing has more or not.
        return FileInfo(
            f"{self._root}/{meta['path']}",
            meta["size"],
            int(meta["last_modified"].timestamp()) * _SECOND_NS,
            _quoted(meta["e_tag"] or ""),
        )


def _rows(page: pa.RecordBatch, skipped: int) -> pa.RecordBatch:
    """Return a page of the library as rows of `LISTING_SCHEMA`, below the listed prefix."""
    # Not the empty object that stands for the listed directory itself.
    page = page.filter(pc.greater_equal(pc.utf8_length(page["path"].cast(pa.string())), skipped))
    seconds = page["last_modified"].cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
    return pa.record_batch(
        [
            pc.utf8_slice_codeunits(page["path"].cast(pa.string()), skipped),
            page["size"].cast(pa.int64()),
            pc.multiply(seconds, _SECOND_NS),
            _all_quoted(page["e_tag"].cast(pa.string()).fill_null("")),
        ],
        schema=LISTING_SCHEMA,
    )


def _are_sorted(pages: Sequence[pa.RecordBatch]) -> bool:
    """Return whether the rows of pages follow each other by path."""
    before = ""
    for page in pages:
        paths = page["path"]
        if not len(paths):
            continue
        if paths[0].as_py().encode() < before.encode():
            return False
        if pc.any(pc.less(paths[1:], paths[:-1])).as_py():
            return False
        before = paths[-1].as_py()
    return True


def _quoted(e_tag: str) -> str:
    """Return an ETag as HTTP has it: Azure's listings leave out its quotes."""
    return f'"{e_tag}"' if e_tag and not e_tag.endswith('"') else e_tag


def _all_quoted(e_tags: pa.Array) -> pa.Array:
    if pc.all(pc.ends_with(e_tags, '"')).as_py():
        return e_tags
    return pa.array(map(_quoted, e_tags.to_pylist()), pa.string())


def _key(path: str) -> str:
    return split_uri(path)[1]


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
            with remote_file.request_slots:
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
