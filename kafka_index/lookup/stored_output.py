"""The output of a run in an object store or HDFS.

The parts are put below ``.NAME.<run id>.tmp/`` beside the output, and renamed at the end; where a
store has no rename, that is a copy on the server. ``_SUCCESS`` comes last: a folder of parts
without it is one that a killed run had begun to publish, and the next run replaces it. There is no
lock: a run removes the parts of another one that writes the same output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from kafka_index.errors import InputError, PublishError
from kafka_index.lookup.answer_files import join_parts
from kafka_index.lookup.output import REPLACEABLE, SUCCESS, AnswerTarget
from kafka_index.lookup.queries import Queries
from kafka_index.storage.directories import scan_directory
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.registry import whole_file
from kafka_index.stores.store import split_uri


def answer_target(
    path: str,
    queries: Queries,
    *,
    inputs: Iterable[str] = (),
    overwrite: bool = False,
) -> AnswerTarget:
    """Return the output of a run, wherever it is; parameters are those of `AnswerTarget`."""
    kind = StoredTarget if is_remote(path) else AnswerTarget
    return kind(path, queries, inputs=inputs, overwrite=overwrite)


class StoredTarget(AnswerTarget):
    """The output of a run in another store than the local disk; see `AnswerTarget`."""

    def __enter__(self) -> Self:
        """Remove what killed runs left."""
        for entry in scan_directory(os.path.dirname(self.path)):
            if entry.is_directory() and self._leftover.fullmatch(entry.name):
                self._remove(entry.path)
        self._stack.callback(self._remove, self._staging)
        return self

    def _publish_file(self, announce: Callable[[Mapping[str, int]], None]) -> None:
        whole, *more = parts = self._parts()
        self._refuse_existing()
        if not more:
            announce({self.path: store_of(whole).info(whole).size_bytes})
            store_of(self.path).rename(whole, self.path)
            return
        with whole_file(self.path, what="answers") as file:
            try:
                join_parts(parts, file.scratch_path, self.format, self._queries.splits[0])
            except OSError as error:
                raise file.error(error) from error
            announce({self.path: os.stat(file.scratch_path).st_size})
            file.commit()

    def _publish_folder(self, announce: Callable[[Mapping[str, int]], None]) -> None:
        parts = self._parts()
        self._refuse_existing()
        ready = {one.name: one for one in scan_directory(self._staging)}
        names = map(os.path.basename, parts)
        sizes = {f"{self.path}/{name}": ready[name].info().size_bytes for name in names}
        announce({**sizes, f"{self.path}/{SUCCESS}": 0})
        store = store_of(self.path)
        old = self._names(self.path)
        # What is read without it from here on is known to be incomplete.
        store.delete([f"{self.path}/{SUCCESS}"] if SUCCESS in old else [])
        if store.has_rename:
            others = self._names(self._staging).difference(map(os.path.basename, parts))
            store.delete([f"{self._staging}/{name}" for name in others])
            store.delete([f"{self.path}/{name}" for name in old - {SUCCESS}])
            store.put(f"{self._staging}/{SUCCESS}", b"")
            store.rename(self._staging, self.path)
            return
        for part in parts:
            name = os.path.basename(part)
            store.rename(part, f"{self.path}/{name}")
            old.discard(name)
        store.delete([f"{self.path}/{name}" for name in old - {SUCCESS}])
        store.put(f"{self.path}/{SUCCESS}", b"")

    def _parts(self) -> list[str]:
        there = self._names(self._staging)
        parts = [self.part_path(split) for split in self._queries.splits]
        for part in parts:
            if os.path.basename(part) not in there:
                raise PublishError("a part of the answers is missing", path=part, hint="run again")
        return parts

    def _refuse_existing(self) -> None:
        if not split_uri(self.path)[1]:
            raise InputError(
                "the output is not below a bucket", path=self._given, hint="name a folder in it"
            )
        folder, name = os.path.split(self.path)
        entries = [entry for entry in scan_directory(folder) if entry.name == name]
        if any(not entry.is_directory() for entry in entries):
            if self._overwrite and not self.is_file:
                raise InputError(
                    "a file is not replaced by a folder",
                    path=self._given,
                    hint="choose another place",
                )
            if not self._overwrite:
                raise self._exists()
        names = self._names(self.path) if any(entry.is_directory() for entry in entries) else set()
        others = sorted(name for name in names if not REPLACEABLE.fullmatch(name))
        if names and self._overwrite and (self.is_file or others):
            raise InputError(
                "a folder of other files is not replaced",
                path=self._given,
                found=others[0] if others else "a folder",
                hint="choose another place",
            )
        is_unfinished = not others and SUCCESS not in names and not self.is_file
        if names and not self._overwrite and not is_unfinished:
            raise self._exists()

    @staticmethod
    def _names(folder: str) -> set[str]:
        return {entry.name for entry in scan_directory(folder) if entry.path != folder}

    def _remove(self, folder: str) -> None:
        """Remove a folder of parts; HDFS has the folder itself, too."""
        store = store_of(folder)
        store.delete([f"{folder}/{name}" for name in self._names(folder)])
        if store.has_rename:
            store.delete([folder])
