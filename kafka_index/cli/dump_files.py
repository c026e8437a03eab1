"""The files of a dump command: on a local disk, in an object store, or in HDFS."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from kafka_index.errors import InputError
from kafka_index.layout.names import parse_segment_file
from kafka_index.storage import expand_input, local_path
from kafka_index.stores import Bytes, is_remote, store_of


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """A file that can be dumped, by path or URI.

    The base offset is that of its name, 0 for a checkpoint; the kind is its suffix, or its name.
    """

    path: str
    base_offset: int
    kind: str

    @property
    def size_bytes(self) -> int:
        """Its size."""
        try:
            return store_of(self.path).info(self.path).size_bytes
        except FileNotFoundError:
            raise InputError("no such file", path=self.path) from None

    def content(self) -> bytes:
        """Return its bytes, of a file that is small."""
        try:
            return store_of(self.path).read(self.path)
        except FileNotFoundError as error:
            reason = error.strerror or "no such file"
            raise InputError(f"cannot read the file: {reason}", path=self.path) from error

    def fetched(self) -> bytes | None:
        """Return the content of a file of a store; None of a local one, which is opened."""
        return self.content() if is_remote(self.path) else None

    def fetched_array(self) -> Bytes | None:
        """Return the same as an array."""
        content = self.fetched()
        return None if content is None else np.frombuffer(content, np.uint8)


def dumped_files(given: Iterable[str], kinds: Collection[str]) -> list[DumpedFile]:
    """Return the files to dump; refuse unknown ones before any output.

    A glob of a URI is expanded, as the shell does for paths, to files that can be dumped. The kinds
    are their suffixes and names. Raises `InputError` if a file does not exist, is not a file, or is
    of another kind.
    """
    files: list[DumpedFile] = []
    for path in given:
        if not is_remote(path):
            files.append(_local_file(path, kinds))
            continue
        matches = expand_input(path)
        if matches == [path]:
            files.append(_stored_file(path, kinds))
            continue
        known = [file for match in matches if (file := _known(match, kinds)) is not None]
        if not known:
            raise _unknown_kind(matches[0], kinds)
        files += known
    return files


def _local_file(given: str, kinds: Collection[str]) -> DumpedFile:
    path = local_path(given)
    if not os.path.lexists(path):
        raise InputError("no such file", path=given)
    file = _known(path, kinds)
    if file is None:
        raise _unknown_kind(given, kinds)
    if not os.path.isfile(path):
        raise InputError("not a file", path=given)
    return file


def _stored_file(uri: str, kinds: Collection[str]) -> DumpedFile:
    file = _known(uri, kinds)
    if file is None:
        raise _unknown_kind(uri, kinds)
    try:
        store_of(uri).info(uri)
    except FileNotFoundError:
        raise InputError("not a file", path=uri) from None
    return file


def _known(path: str, kinds: Collection[str]) -> DumpedFile | None:
    name = os.path.basename(path)
    parsed = parse_segment_file(name)
    if parsed is not None and parsed.kind in kinds:
        return DumpedFile(path, parsed.base_offset, parsed.kind)
    if name in kinds:
        return DumpedFile(path, 0, name)
    return None


def _unknown_kind(path: str, kinds: Collection[str]) -> InputError:
    return InputError(
        "not a kind of file that can be dumped",
        path=path,
        expected="20 digits and one of "
        f"{', '.join(kind for kind in kinds if kind.startswith('.'))}; or "
        f"{', '.join(kind for kind in kinds if not kind.startswith('.'))}",
        found=os.path.basename(path) or "a folder",
    )
