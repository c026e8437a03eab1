"""Commits of data files to the tables of a lake, exactly once.

A run commits the data files of a topic after their export states are durable:

1. Load the table, with the progress of each partition: the version of the key
   ``kafka-index:<id of the output>:<topic>-<partition>`` is its next offset. The version of the
   same key with ``:revision`` is the revision of its data files, and with ``:files`` their count
   so far (`ExportState`).
2. Files below that offset are in the table. Select the other files, and the offsets that a later
   revision has replaced. If files are missing by the count, the run ends.
3. Commit the files together with the new versions, in one transaction of the table.
4. After a conflict, or an unknown outcome, start again with step 1.

If a run is killed before its commit, the next run commits its files. Files in a table are not
deleted here, because earlier snapshots have them. The maintenance of the table deletes them.

A table with the newest record of each key has the same progress. In step 2, the files are history
files, which are merged into files of the table (`replace_rows`). If rows were replaced, all history
files of the partition are merged: an older record may be the newest one again.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa

from kafka_index.commands.export.export_state import ExportState, export_state
from kafka_index.commands.export.partition_export import (
    DataFileInfo,
    PartitionExport,
    data_files,
    is_covered,
)
from kafka_index.commands.export.replaced_rows import RowRange, TableFile, replace_rows
from kafka_index.commands.export.request import ExportFormat, ExportRequest, History
from kafka_index.commands.export.settings import PARTITION_FOLDER, ExportSettings
from kafka_index.core.errors import InputError, KafkaIndexError, PublishError, plural
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.uri_passwords import hide_passwords
from kafka_index.core.fs.registry import directory_exists, scan_directory
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.output.output import StateFile

_OUTPUT_ID = ".kafka-index-tables.json"
_CONFLICTS, _FAILURES = 30, 3
_MAX_WAIT_SECONDS = 3.0
#: The maximum length of a message of another library.
_MAX_DETAIL_LENGTH = 300
#: Errors of this code rather than of a catalog or a store.
_INTERNAL = (AssertionError, AttributeError, NameError, TypeError)
#: Errors that are about the content of a table, and would occur again.
_PERMANENT = (ValueError, ArithmeticError, LookupError, NotImplementedError, pa.ArrowException)


class CommitConflictError(PublishError):
    """Another writer has changed the table, or the outcome of the commit is unknown."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """A transaction: paths of files of the table that it loses, of new files, and versions."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _NewFiles:
    """The data files that a table lacks, the rows that they replace, and its next versions."""

    paths: tuple[str, ...]
    replaced: tuple[RowRange, ...]
    versions: Mapping[str, int]
    partitions: tuple[int, ...]


class LakeTable(ABC):
    """A table of a topic; every method may raise `PublishError` if the catalog or store fails."""

    name: str

    @abstractmethod
    def load(self) -> None:
        """Read the current version of the table."""

    @abstractmethod
    def version(self, key: str) -> int | None:
        """Return the version of a key in the loaded table."""

    @abstractmethod
    def has_rows(self, partitions: Collection[int]) -> bool:
        """Return whether the loaded table has rows of any of these partitions."""

    @abstractmethod
    def rewritten_schema(self) -> pa.Schema:
        """Return the columns of rewritten files: of the loaded table, followed by new columns."""

    @abstractmethod
    def files_with(self, partitions: Collection[int]) -> list[TableFile]:
        """Return the files of the loaded table that may have rows of partitions.

        Raises `InputError` if the rows of a file differ from its statistics in the table.
        """

    @abstractmethod
    def commit(self, change: TableChange) -> None:
        """Change the loaded table in one transaction.

        Raises `CommitConflictError` if the table is not the loaded one any more.
        """


class Lake(ABC):
    """The catalog or folder of all tables of an export."""

    def default_output(self) -> str:
        """Return the output folder if none is given."""
        raise NotImplementedError

    @abstractmethod
    def open(self, topic: str, folder: str, settings: ExportSettings) -> LakeTable:
        """Create the table of a topic unless it exists; return it, loaded.

        Raises `InputError` if it cannot take the columns of the data files.
        """


@contextmanager
def table_errors(
    action: str,
    name: str,
    *,
    conflicts: tuple[type[Exception], ...] = (),
    permanent: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Convert the errors of a library to errors of this package.

    `conflicts` become `CommitConflictError`. Errors that would occur again, such as an error of a
    type or schema, become `InputError`: `permanent` are the library's own ones. All others are
    errors of a catalog or a store, and become `PublishError`.
    """
    try:
        yield
    except KafkaIndexError:
        raise
    except Exception as error:
        if isinstance(error, _INTERNAL) and not isinstance(error, pa.ArrowException):
            raise
        # The response of a store is not shown: it may contain a signature.
        detail = next(iter(str(error).strip().splitlines()), "").partition("<")[0]
        detail = hide_passwords(detail)[:_MAX_DETAIL_LENGTH]
        message = f"cannot {action}: {type(error).__name__}: {detail}"
        if isinstance(error, conflicts):
            raise CommitConflictError(message, path=name) from error
        # Errors of a connection are `ValueError` as well, if a response is not JSON.
        is_environment = isinstance(error, OSError | MemoryError)
        if isinstance(error, (*_PERMANENT, *permanent)) and not is_environment:
            raise InputError(message, path=name) from error
        raise PublishError(message, path=name) from error


@dataclass(slots=True)
class Tables:
    """The tables of an export by topic; none for files without a table."""

    lake: Lake | None = None
    notes: list[str] = field(default_factory=list)
    _settings: ExportSettings | None = None
    _output_id: str = ""
    _tables: dict[str, LakeTable] = field(default_factory=dict)

    @classmethod
    def of(cls, request: ExportRequest) -> Self:
        """Return the tables of a request, before any is opened.

        Raises `InputError` if the library of the format is not installed.
        """
        # The libraries are optional, and slow to import.
        if request.format is ExportFormat.ICEBERG:
            from kafka_index.commands.export.iceberg import IcebergLake  # noqa: PLC0415

            return cls(IcebergLake(request.catalog or "", request.namespace or ""))
        if request.format is ExportFormat.DELTA:
            from kafka_index.commands.export.delta import DeltaLake  # noqa: PLC0415

            return cls(DeltaLake())
        return cls()

    @property
    def output(self) -> str:
        """The output folder if none is given."""
        assert self.lake is not None  # noqa: S101, because others need an output
        return self.lake.default_output()

    def open(self, files: Sequence[PartitionFiles], settings: ExportSettings) -> None:
        """Open the table of each topic, while the lock of the output is held.

        Raises `InputError` if the columns cannot be added to a table, or it belongs to another
        output.
        """
        self._settings = settings
        if self.lake is None:
            return
        self._output_id = _read_output_id(settings.output)
        of_topic: dict[str, list[TopicPartition]] = defaultdict(list)
        for own in files:
            of_topic[own.topic].append(TopicPartition(own.topic, own.partition))
        for topic in of_topic:
            _refuse_other_history(topic, settings)
        for topic, partitions in of_topic.items():
            folder = settings.table_folder(topic)
            table = self.lake.open(topic, folder, settings.of_topic(topic))
            self._tables[topic] = table
            new = [one for one in partitions if not self._has_progress(table, one)]
            _refuse_other_rows(table, new)

    def commit(self, partitions: Sequence[PartitionExport]) -> None:
        """Commit the complete files of each topic.

        An error of a topic is reported for its partitions; the other topics are committed.
        """
        exports_by_topic: dict[str, list[PartitionExport]] = defaultdict(list)
        for export in partitions:
            exports_by_topic[export.partition.topic].append(export)
        changes = []
        for topic, table in self._tables.items():
            exports = exports_by_topic[topic]
            try:
                changes += self._commit_topic(table, [export.partition for export in exports])
            except KafkaIndexError as error:
                if all(export.failure is not None for export in exports):
                    self.notes.append(str(error))
                for export in exports:
                    export.add_commit_error(error)
        if changes:
            files = plural(sum(len(change.added) for change in changes), "file")
            removed = sum(len(change.removed) for change in changes)
            also = f", {plural(removed, 'file')} replaced" if removed else ""
            self.notes.append(f"{files} committed to {plural(len(changes), 'table')}{also}")

    def _commit_topic(
        self, table: LakeTable, partitions: Sequence[TopicPartition]
    ) -> list[TableChange]:
        """Return the change that was committed, if there was one."""
        settings = self._settings
        assert settings is not None  # noqa: S101, because tables are open
        topic = partitions[0].topic
        folder = settings.table_folder(topic)
        exports = [_CompleteFiles.read(one, self._key(one), settings) for one in partitions]
        merge = _RowMerge(settings.of_topic(topic), folder)
        conflicts = failures = 0
        while True:
            table.load()
            known = [one for one in exports if one is not None]
            new = _new_files(table, known, is_latest=settings.is_latest)
            if new is None:
                return []
            try:
                change = merge.table_change(table, new)
                table.commit(change)
            except CommitConflictError as error:
                conflicts += 1
                if conflicts == _CONFLICTS:
                    hint = "run again when fewer other writers use the table"
                    raise PublishError(error.message, path=table.name, hint=hint) from error
            except PublishError:
                failures += 1
                if failures == _FAILURES:
                    raise
            else:
                return [change]
            most = min(0.05 * 2 ** (conflicts + failures), _MAX_WAIT_SECONDS)
            time.sleep(random.uniform(0, most))  # noqa: S311, so that writers do not meet again

    def _key(self, partition: TopicPartition) -> str:
        return f"kafka-index:{self._output_id}:{partition.directory_name}"

    def _has_progress(self, table: LakeTable, partition: TopicPartition) -> bool:
        """Return whether a table has progress of a partition.

        Raises `InputError` if that is ahead of the export state.
        """
        progress = _Progress.read(table, self._key(partition))
        if progress is None:
            return False
        assert self._settings is not None  # noqa: S101, because tables are open
        state = export_state(self._settings.folder_of(partition)).read()
        known = (0, 0) if state is None else (state.revision, state.next_offset)
        if known < (progress.revision, progress.next_offset):
            raise InputError(
                f"the table has {partition.directory_name} up to offset {progress.next_offset}, "
                f"and the export state ends at {known[1]}",
                path=table.name,
                hint="restore the folder of the partition, or drop the table and give another "
                "--output",
            )
        return True


def _refuse_other_history(topic: str, settings: ExportSettings) -> None:
    """Raise `InputError` if partitions of a topic were exported with another history."""
    other = History.FULL if settings.is_latest else History.LATEST
    folder = replace(settings, history=other).history_folder(topic)
    if not directory_exists(folder):
        return
    for entry in scan_directory(folder):
        if entry.name.startswith(PARTITION_FOLDER) and entry.is_directory():
            raise InputError(
                "the table was exported with another value of --history",
                path=entry.path,
                expected=other,
                found=settings.history,
                hint=f"give --history {other} to continue that export, or give another --output",
            )


def _refuse_other_rows(table: LakeTable, partitions: Sequence[TopicPartition]) -> None:
    # One check for all partitions, because it may read the list of files.
    if not table.has_rows([one.partition for one in partitions]):
        return
    for one in partitions:
        if table.has_rows([one.partition]):
            raise InputError(
                f"the table has rows of {one.directory_name} that this output has not committed",
                path=table.name,
                hint="give the --output of the first export, or another table",
            )


@dataclass(frozen=True, slots=True)
class _Progress:
    """The progress of a partition in a table."""

    next_offset: int
    revision: int
    files: int | None

    @classmethod
    def read(cls, table: LakeTable, key: str) -> _Progress | None:
        next_offset = table.version(key)
        if next_offset is None:
            return None
        return cls(next_offset, table.version(_revision(key)) or 0, table.version(_files(key)))


_NO_PROGRESS = _Progress(0, 0, 0)


def _revision(key: str) -> str:
    return f"{key}:revision"


def _files(key: str) -> str:
    return f"{key}:files"


@dataclass(frozen=True, slots=True)
class _CompleteFiles:
    """The data files of a partition that its export state covers; `files` are the current ones."""

    partition: TopicPartition
    key: str
    state: ExportState
    files: Sequence[DataFileInfo]
    every_file: Sequence[DataFileInfo]
    folder: str

    @classmethod
    def read(
        cls, partition: TopicPartition, key: str, settings: ExportSettings
    ) -> _CompleteFiles | None:
        """Return the files in the folder of a partition; None if it has no complete export."""
        folder = settings.folder_of(partition)
        state = export_state(folder).read()
        if state is None or state.superseded is not None:
            return None
        found = [file for file in data_files(folder) if is_covered(file, state)]
        found.sort(key=lambda file: (file.first_offset, file.path))
        files = [one for one in found if one.revision == state.revision_at(one.first_offset)]
        return cls(partition, key, state, files, found, folder)

    def replaced_after(self, progress: _Progress) -> list[RowRange]:
        """Return the rows of a table that later revisions replace."""
        return [
            RowRange(self.partition.partition, each.first_offset, each.end_offset)
            for each in self.state.replaced
            if each.revision > progress.revision and each.first_offset < progress.next_offset
        ]

    def refuse_lost_files(self, progress: _Progress) -> None:
        """Raise `InputError` if a data file that a table does not have is gone."""
        state = self.state
        if state.files is None or progress.files is None:
            return
        expected = state.files - progress.files
        found = sum(
            file.revision > progress.revision
            or (
                file.first_offset >= progress.next_offset
                and file.revision >= state.revision_at(file.first_offset, progress.revision)
            )
            for file in self.every_file
        )
        if found < expected:
            raise InputError(
                "data files were removed before they were committed to the table",
                path=self.folder,
                expected=f"{plural(expected, 'data file')} from offset {progress.next_offset} on",
                found=found,
                hint="restore them, or drop the table and give another --output",
            )


def _new_files(
    table: LakeTable, exports: Sequence[_CompleteFiles], *, is_latest: bool
) -> _NewFiles | None:
    """Return the new files of a table; None if it is up to date."""
    paths: list[str] = []
    replaced: list[RowRange] = []
    versions: dict[str, int] = {}
    partitions: list[int] = []
    without_progress: list[TopicPartition] = []
    for one in exports:
        known = _Progress.read(table, one.key)
        progress = _NO_PROGRESS if known is None else known
        one.refuse_lost_files(progress)
        rows = one.replaced_after(progress)
        if rows and is_latest:
            rows, progress = [RowRange(one.partition.partition, 0, INT64_MAX)], _NO_PROGRESS
            one.refuse_lost_files(progress)
        new = [file.path for file in one.files if _is_new(file, progress)]
        if new and known is None:
            without_progress.append(one.partition)
        if new or rows:
            paths += new
            replaced += rows
            partitions.append(one.partition.partition)
            versions[one.key] = one.state.next_offset
            if one.state.revision:
                versions[_revision(one.key)] = one.state.revision
            if one.state.files is not None:
                versions[_files(one.key)] = one.state.files
    if not versions:
        return None
    _refuse_other_rows(table, without_progress)
    return _NewFiles(tuple(paths), tuple(replaced), versions, tuple(partitions))


@dataclass(slots=True)
class _RowMerge:
    """Merges new files into the files of a table.

    If another writer's commit did not change those files, the next attempt reuses the written ones.
    """

    settings: ExportSettings
    folder: str
    _input: tuple[object, ...] | None = None
    _removed: Sequence[str] = ()
    _rewritten: Sequence[str] = ()

    def table_change(self, table: LakeTable, new: _NewFiles) -> TableChange:
        """Return the transaction that adds new files to a table, or merges them into its files."""
        is_latest = self.settings.is_latest
        if not (new.replaced or is_latest):
            return TableChange((), new.paths, new.versions)
        with table_errors("replace rows of the table", table.name):
            files = table.files_with(new.partitions)
            schema = table.rewritten_schema()
            merge_input = (files, schema, new.replaced, new.paths)
            if merge_input != self._input:
                history_files = new.paths if is_latest else ()
                self._removed, self._rewritten = replace_rows(
                    files, new.replaced, history_files, schema, self.settings, self.folder
                )
                self._input = merge_input
        added = self._rewritten if is_latest else [*new.paths, *self._rewritten]
        return TableChange(tuple(self._removed), tuple(added), new.versions)


def _is_new(file: DataFileInfo, progress: _Progress) -> bool:
    """Return whether a file is not in the table; raises `InputError` if a part of it is."""
    if file.revision > progress.revision or file.first_offset >= progress.next_offset:
        return True
    if file.last_offset >= progress.next_offset:
        raise InputError(
            "the table has a part of the offsets of a data file",
            path=file.path,
            expected=f"a file that ends before, or begins at, offset {progress.next_offset}",
            found=f"offsets {file.first_offset} to {file.last_offset}",
        )
    return False


@dataclass(frozen=True, slots=True)
class _OutputId:
    id: str


def _read_output_id(output: str) -> str:
    """Return the ID of an output, which its first export to tables creates."""
    file = StateFile(
        os.path.join(output, _OUTPUT_ID), _OutputId, 1, "ID of the output", "give another --output"
    )
    known = file.read()
    if known is None:
        known = _OutputId(uuid.uuid4().hex)
        file.write(known)
    return known.id
