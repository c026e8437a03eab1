"""Commits of data files to the tables of a lake; each file is committed exactly once.

A run commits the data files of a topic after their export states are durable:

1. Load the table, and read the progress of each partition. The version of the key
   ``kafka-index:<id of the output>:<topic>-<partition>`` is the partition's next offset. With the
   suffix ``:revision``, the version is the revision of the partition's data files. With
   ``:files``, it is their number so far (`ExportState`).
2. Data files before the next offset are in the table. Select the other data files, and the offsets
   that a later revision has replaced. If fewer files exist than were counted, reject the topic.
3. Commit the files together with the new versions, in one transaction of the table.
4. If the commit conflicts, or its outcome is unknown, start again with step 1.

If a run is killed before its commit, the next run commits its files. An export never deletes files
in a table, because earlier snapshots contain them. Table maintenance deletes them, such as VACUUM
of Delta.

A table with the newest record of each key stores its progress in the same way. Its data files are
history files, which step 3 merges into files of the table (`replace_rows`). If rows were replaced,
all history files of the partition are merged, because an older record may be the newest record
again.
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
_MAX_CONFLICTS, _MAX_FAILURES = 30, 3
_MAX_WAIT_SECONDS = 3.0
#: The maximum length of another library's error message in our messages.
_MAX_DETAIL_LENGTH = 300
#: Errors that are bugs, not failures of a catalog or a store.
_INTERNAL = (AssertionError, AttributeError, NameError, TypeError)
#: Errors about the content of a table, which would occur again in a retry.
_PERMANENT = (ValueError, ArithmeticError, LookupError, NotImplementedError, pa.ArrowException)


class CommitConflictError(PublishError):
    """Another writer has changed the table, or the outcome of the commit is unknown."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """A transaction of a table.

    Attributes
    ----------
    removed, added : tuple of str
        Paths of files that the transaction removes from the table, and adds to it.
    versions : mapping of str to int
        The new versions of progress keys.
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _NewFiles:
    """Data files to commit, ranges of rows to replace, and new versions of progress keys."""

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
        """Return the version of a progress key in the loaded table."""

    @abstractmethod
    def has_rows(self, partitions: Collection[int]) -> bool:
        """Return whether the loaded table has rows of any of these partitions."""

    @abstractmethod
    def rewritten_schema(self) -> pa.Schema:
        """Return the columns of rewritten files: those of the loaded table, then new columns."""

    @abstractmethod
    def list_files(self, partitions: Collection[int]) -> list[TableFile]:
        """Return the files of the loaded table that may have rows of partitions.

        Raises `InputError` if the table has a feature, such as delete files, that prevents the
        replacement of rows.
        """

    @abstractmethod
    def commit(self, change: TableChange) -> None:
        """Change the loaded table in one transaction.

        Raises `CommitConflictError` if the table has changed since it was loaded.
        """


class Lake(ABC):
    """The catalog or folder of all tables of an export."""

    def default_output(self) -> str:
        """Return the output folder if none is given."""
        raise NotImplementedError

    @abstractmethod
    def open(self, topic: str, folder: str, settings: ExportSettings) -> LakeTable:
        """Create the table of a topic unless it exists; return it, loaded.

        Raises `InputError` if the columns of the data files cannot be added to the table.
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

    Parameters
    ----------
    conflicts : tuple of type
        Errors that become `CommitConflictError`.
    permanent : tuple of type
        Errors of the library that would occur again, such as schema errors. They become
        `InputError`, as do the general errors in `_PERMANENT`. All remaining errors become
        `PublishError`, because a catalog or a store may have caused them.
    """
    try:
        yield
    except KafkaIndexError:
        raise
    except Exception as error:
        if isinstance(error, _INTERNAL) and not isinstance(error, pa.ArrowException):
            raise
        # The XML response of a store is not shown, because it may contain a signature.
        detail = next(iter(str(error).strip().splitlines()), "").partition("<")[0]
        detail = hide_passwords(detail)[:_MAX_DETAIL_LENGTH]
        message = f"cannot {action}: {type(error).__name__}: {detail}"
        if isinstance(error, conflicts):
            raise CommitConflictError(message, path=name) from error
        # In the library requests, the error for a response that is not JSON is both an `OSError`
        # and a `ValueError`.
        is_environment = isinstance(error, OSError | MemoryError)
        if isinstance(error, (*_PERMANENT, *permanent)) and not is_environment:
            raise InputError(message, path=name) from error
        raise PublishError(message, path=name) from error


@dataclass(slots=True)
class Tables:
    """The tables of an export, by topic. Exports to Parquet or JSON lines have no tables."""

    lake: Lake | None = None
    notes: list[str] = field(default_factory=list)
    _settings: ExportSettings | None = None
    _output_id: str = ""
    _tables: dict[str, LakeTable] = field(default_factory=dict)

    @classmethod
    def for_request(cls, request: ExportRequest) -> Self:
        """Return the tables of a request; no table is opened.

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
        assert self.lake is not None  # noqa: S101, because --output is required without a lake
        return self.lake.default_output()

    def open(self, files: Sequence[PartitionFiles], settings: ExportSettings) -> None:
        """Open the table of each topic, while the lock of the output is held.

        Raises `InputError` if the columns cannot be added to a table, or if a table belongs to
        another output.
        """
        self._settings = settings
        if self.lake is None:
            return
        self._output_id = _read_output_id(settings.output)
        partitions_by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition_files in files:
            partition = TopicPartition(partition_files.topic, partition_files.partition)
            partitions_by_topic[partition.topic].append(partition)
        for topic in partitions_by_topic:
            _refuse_other_history(topic, settings)
        for topic, partitions in partitions_by_topic.items():
            folder = settings.table_folder(topic)
            table = self.lake.open(topic, folder, settings.for_topic(topic))
            self._tables[topic] = table
            _refuse_foreign_rows(
                table,
                [partition for partition in partitions if not self._has_progress(table, partition)],
            )

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
            removed_count = sum(len(change.removed) for change in changes)
            replaced_text = f", {plural(removed_count, 'file')} replaced" if removed_count else ""
            self.notes.append(
                f"{files} committed to {plural(len(changes), 'table')}{replaced_text}"
            )

    def _commit_topic(
        self, table: LakeTable, partitions: Sequence[TopicPartition]
    ) -> list[TableChange]:
        """Commit the new files of a topic; return the committed change, or an empty list."""
        settings = self._settings
        assert settings is not None  # noqa: S101, because tables are open
        topic = partitions[0].topic
        folder = settings.table_folder(topic)
        files_or_none = (
            _CompleteFiles.read(partition, self._key(partition), settings)
            for partition in partitions
        )
        complete_files = [files for files in files_or_none if files is not None]
        merge = _RowMerge(settings.for_topic(topic), folder)
        conflicts = failures = 0
        while True:
            table.load()
            new_files = _select_new_files(table, complete_files, is_latest=settings.is_latest)
            if new_files is None:
                return []
            try:
                change = merge.table_change(table, new_files)
                table.commit(change)
            except CommitConflictError as error:
                conflicts += 1
                if conflicts == _MAX_CONFLICTS:
                    hint = "run again when fewer other writers use the table"
                    raise PublishError(error.message, path=table.name, hint=hint) from error
            except PublishError:
                failures += 1
                if failures == _MAX_FAILURES:
                    raise
            else:
                return [change]
            max_wait_seconds = min(0.05 * 2 ** (conflicts + failures), _MAX_WAIT_SECONDS)
            # A random wait, so that concurrent writers do not collide again.
            time.sleep(random.uniform(0, max_wait_seconds))  # noqa: S311

    def _key(self, partition: TopicPartition) -> str:
        return f"kafka-index:{self._output_id}:{partition.directory_name}"

    def _has_progress(self, table: LakeTable, partition: TopicPartition) -> bool:
        """Return whether a table has progress of a partition.

        Raises `InputError` if the progress is ahead of the export state.
        """
        progress = _Progress.read(table, self._key(partition))
        if progress is None:
            return False
        assert self._settings is not None  # noqa: S101, because tables are open
        state = export_state(self._settings.folder_of(partition)).read()
        revision, next_offset = (0, 0) if state is None else (state.revision, state.next_offset)
        if (revision, next_offset) < (progress.revision, progress.next_offset):
            raise InputError(
                f"the table has {partition.directory_name} up to offset {progress.next_offset}, "
                f"but the export state ends at offset {next_offset}",
                path=table.name,
                hint="restore the folder of the partition, or drop the table and give another "
                "--output",
            )
        return True


def _refuse_other_history(topic: str, settings: ExportSettings) -> None:
    """Raise `InputError` if partitions of a topic were exported with another --history."""
    other_history = History.FULL if settings.is_latest else History.LATEST
    folder = replace(settings, history=other_history).history_folder(topic)
    if not directory_exists(folder):
        return
    for entry in scan_directory(folder):
        if entry.name.startswith(PARTITION_FOLDER) and entry.is_directory():
            raise InputError(
                "the table was exported with another value of --history",
                path=entry.path,
                expected=other_history,
                found=settings.history,
                hint=f"give --history {other_history} to continue that export, or give another "
                "--output",
            )


def _refuse_foreign_rows(table: LakeTable, partitions: Sequence[TopicPartition]) -> None:
    # All partitions are checked in one call first, because each call may read the table's list of
    # files.
    if not table.has_rows([partition.partition for partition in partitions]):
        return
    for partition in partitions:
        if table.has_rows([partition.partition]):
            raise InputError(
                f"the table has rows of {partition.directory_name} from another output",
                path=table.name,
                hint="give the --output of the first export, or another table",
            )


@dataclass(frozen=True, slots=True)
class _Progress:
    """The committed progress of a partition: next offset, revision and number of data files."""

    next_offset: int
    revision: int
    files: int | None

    @classmethod
    def read(cls, table: LakeTable, key: str) -> _Progress | None:
        next_offset = table.version(key)
        if next_offset is None:
            return None
        return cls(
            next_offset, table.version(_revision_key(key)) or 0, table.version(_files_key(key))
        )


_NO_PROGRESS = _Progress(0, 0, 0)


def _revision_key(key: str) -> str:
    return f"{key}:revision"


def _files_key(key: str) -> str:
    return f"{key}:files"


@dataclass(frozen=True, slots=True)
class _CompleteFiles:
    """The data files of a partition that its export state covers.

    Attributes
    ----------
    files : sequence of DataFileInfo
        The files that no later revision has replaced.
    covered_files : sequence of DataFileInfo
        All files, including replaced files.
    """

    partition: TopicPartition
    key: str
    state: ExportState
    files: Sequence[DataFileInfo]
    covered_files: Sequence[DataFileInfo]
    folder: str

    @classmethod
    def read(
        cls, partition: TopicPartition, key: str, settings: ExportSettings
    ) -> _CompleteFiles | None:
        """Return the data files of a partition; None without an export, or during a replacement."""
        folder = settings.folder_of(partition)
        state = export_state(folder).read()
        if state is None or state.superseded is not None:
            return None
        covered_files = [file for file in data_files(folder) if is_covered(file, state)]
        covered_files.sort(key=lambda file: (file.first_offset, file.path))
        files = [
            file for file in covered_files if file.revision == state.revision_at(file.first_offset)
        ]
        return cls(partition, key, state, files, covered_files, folder)

    def list_replaced_rows(self, progress: _Progress) -> list[RowRange]:
        """Return the rows of a table that later revisions replace."""
        return [
            RowRange(
                self.partition.partition, replaced_range.first_offset, replaced_range.end_offset
            )
            for replaced_range in self.state.replaced
            if replaced_range.revision > progress.revision
            and replaced_range.first_offset < progress.next_offset
        ]

    def refuse_lost_files(self, progress: _Progress) -> None:
        """Raise `InputError` if a data file that was not committed no longer exists."""
        state = self.state
        if state.files is None or progress.files is None:
            return
        uncommitted_count = state.files - progress.files
        available_count = sum(
            file.revision > progress.revision
            or (
                file.first_offset >= progress.next_offset
                and file.revision >= state.revision_at(file.first_offset, progress.revision)
            )
            for file in self.covered_files
        )
        if available_count < uncommitted_count:
            raise InputError(
                "data files were removed before they were committed to the table",
                path=self.folder,
                expected=f"{plural(uncommitted_count, 'data file')} from offset "
                f"{progress.next_offset} on",
                found=available_count,
                hint="restore the files, or drop the table and give another --output",
            )


def _select_new_files(
    table: LakeTable, exports: Sequence[_CompleteFiles], *, is_latest: bool
) -> _NewFiles | None:
    """Return the files to commit to a table; None if the table is up to date."""
    paths: list[str] = []
    replaced_rows: list[RowRange] = []
    versions: dict[str, int] = {}
    partitions: list[int] = []
    without_progress: list[TopicPartition] = []
    for export in exports:
        table_progress = _Progress.read(table, export.key)
        progress = _NO_PROGRESS if table_progress is None else table_progress
        export.refuse_lost_files(progress)
        rows = export.list_replaced_rows(progress)
        if rows and is_latest:
            # Merge all history files again: without the replaced rows, an older record may be the
            # newest record of its key.
            rows, progress = [RowRange(export.partition.partition, 0, INT64_MAX)], _NO_PROGRESS
            export.refuse_lost_files(progress)
        new_paths = [file.path for file in export.files if _is_new(file, progress)]
        if new_paths and table_progress is None:
            without_progress.append(export.partition)
        if new_paths or rows:
            paths += new_paths
            replaced_rows += rows
            partitions.append(export.partition.partition)
            versions[export.key] = export.state.next_offset
            if export.state.revision:
                versions[_revision_key(export.key)] = export.state.revision
            if export.state.files is not None:
                versions[_files_key(export.key)] = export.state.files
    if not versions:
        return None
    _refuse_foreign_rows(table, without_progress)
    return _NewFiles(tuple(paths), tuple(replaced_rows), versions, tuple(partitions))


@dataclass(slots=True)
class _RowMerge:
    """Merges new files into the files of a table.

    If a commit conflicts, the rewritten files are reused, unless files or columns of the table have
    changed.
    """

    settings: ExportSettings
    folder: str
    _input: tuple[object, ...] | None = None
    _removed: Sequence[str] = ()
    _rewritten: Sequence[str] = ()

    def table_change(self, table: LakeTable, new_files: _NewFiles) -> TableChange:
        """Return the transaction that adds new files to a table, or merges them into its files."""
        is_latest = self.settings.is_latest
        if not (new_files.replaced or is_latest):
            return TableChange((), new_files.paths, new_files.versions)
        with table_errors("replace rows of the table", table.name):
            files = table.list_files(new_files.partitions)
            schema = table.rewritten_schema()
            merge_input = (files, schema, new_files.replaced, new_files.paths)
            if merge_input != self._input:
                history_files = new_files.paths if is_latest else ()
                self._removed, self._rewritten = replace_rows(
                    files, new_files.replaced, history_files, schema, self.settings, self.folder
                )
                self._input = merge_input
        added_paths = self._rewritten if is_latest else [*new_files.paths, *self._rewritten]
        return TableChange(tuple(self._removed), tuple(added_paths), new_files.versions)


def _is_new(file: DataFileInfo, progress: _Progress) -> bool:
    """Return whether a file is not in the table; raises `InputError` if it is partly in it."""
    if file.revision > progress.revision or file.first_offset >= progress.next_offset:
        return True
    if file.last_offset >= progress.next_offset:
        raise InputError(
            "the table has only some offsets of a data file",
            path=file.path,
            expected=f"only offsets before {progress.next_offset}, or only offsets from it on",
            found=f"offsets {file.first_offset} to {file.last_offset}",
        )
    return False


@dataclass(frozen=True, slots=True)
class _OutputId:
    id: str


def _read_output_id(output: str) -> str:
    """Return the ID of an output; the first export to tables creates the ID."""
    file = StateFile(
        os.path.join(output, _OUTPUT_ID), _OutputId, 1, "ID of the output", "give another --output"
    )
    output_id = file.read()
    if output_id is None:
        output_id = _OutputId(uuid.uuid4().hex)
        file.write(output_id)
    return output_id.id
