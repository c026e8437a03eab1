"""The settings of an export."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from kafka_index.commands.export.request import ExportFormat, History
from kafka_index.commands.export.table_schema import table_schema
from kafka_index.core.errors import InputError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.paths import target_directory
from kafka_index.core.log.choices import Decode, OnDamage
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.record_table import DEFAULT_COLUMNS
from kafka_index.core.schema.columns import KEY, VALUE, is_of_part, is_typed, side_names

if TYPE_CHECKING:
    from kafka_index.core.schema.decode import TypedColumns

#: Columns in the names of folders, as in Hive. Parquet files and JSON lines do not contain them.
FOLDER_COLUMNS = ("topic", "partition")
#: Columns of every table, because rows are replaced by partition and offset.
_TABLE_COLUMNS = ("topic", "partition", "offset")
#: The boolean column of history files that marks tombstones.
TOMBSTONE = "_tombstone"
#: Prefix of the folders of partitions in the folder of a table.
PARTITION_FOLDER = "partition-"
#: The folder of history files in the folder of a table. Readers of tables ignore this folder, as do
#: tools that delete unreferenced files.
_HISTORY = "_history"
#: The suffix of data files in a staging folder.
STAGED_ENDING = ".staged"


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The settings of an export; small, and picklable.

    With the history ``latest``, the data files of a partition are called history files. They are
    merged into the table, which has other files.

    Attributes
    ----------
    output : str
        An absolute path or a URI.
    columns : tuple of str
        Names in `RECORD_SCHEMA`, or of typed columns. Topic and partition become folder names.
    by_date : bool
        Add a folder for each day of the timestamps, in UTC.
    read : ReadSettings
        `read_settings` replaces its columns, and its action for damage.
    relative_times : mapping of str to str
        ``from_ms`` and ``to_ms`` as they were given, if they are relative to now.
    is_staged : bool
        Data files are in a staging folder, with names that no reader of Parquet matches.
    revision : int
        The revision of the data files (`ExportState`).
    decode : mapping of str to str
        The options of typed columns.
    types : mapping of str to TypedColumns
        The typed columns of each topic.
    """

    output: str
    format: ExportFormat = ExportFormat.PARQUET
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    by_date: bool = False
    read: ReadSettings = field(default_factory=ReadSettings)
    relative_times: Mapping[str, str] = field(default_factory=dict)
    is_staged: bool = False
    revision: int = 0
    decode: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, TypedColumns] = field(default_factory=dict)
    history: History = History.FULL

    @property
    def is_latest(self) -> bool:
        """Whether tables have the newest record of each key."""
        return self.history is History.LATEST

    @property
    def from_ms(self) -> int | None:
        """The first timestamp that is exported."""
        return None if self.read.record_filter is None else self.read.record_filter.from_ms

    @property
    def to_ms(self) -> int | None:
        """The end of the exported timestamps, exclusive."""
        return None if self.read.record_filter is None else self.read.record_filter.to_ms

    def __post_init__(self) -> None:
        record_columns = tuple(name for name in self.columns if not is_typed(name))
        ReadSettings(columns=record_columns).schema  # noqa: B018, because it checks the names
        if not self.file_columns:
            raise InputError(
                "the data files would have no columns: topic and partition become folder names",
                found=", ".join(self.columns),
                hint="add another column, such as offset",
            )

    def file_name(self, first_offset: int, last_offset: int) -> str:
        """Return the name of the data file of a range of offsets."""
        revision = f"-{self.revision}" if self.revision else ""
        ending = f"{self.format.ending}{STAGED_ENDING}" if self.is_staged else self.format.ending
        return f"{first_offset:020d}-{last_offset:020d}{revision}{ending}"

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns of the data files, before keys or values are decoded."""
        if self.format.is_table:
            required_columns = (*_TABLE_COLUMNS, *(("timestamp",) if self.by_date else ()))
            sides = (KEY, VALUE) if self.is_latest else ()
            merge_columns = [name for side in sides for name in self._merge_columns(side)]
            return tuple(dict.fromkeys((*self.columns, *required_columns, *merge_columns)))
        return tuple(name for name in self.columns if name not in FOLDER_COLUMNS)

    def _merge_columns(self, side: str) -> tuple[str, ...]:
        """Return the columns of keys or values that a merge requires."""
        part_columns = [name for name in self.columns if is_of_part(name, side)]
        if self.raw_column(side) == side or not part_columns:
            return (side,)
        # If no side column is requested, the data files have all side columns.
        is_named = any(name in side_names(side) for name in part_columns)
        return side_names(side)[2:] if is_named else ()

    def raw_column(self, side: str) -> str:
        """Return the column with the bytes of keys or values."""
        decode = self.decode.get("decode")
        is_decoded = decode is not None and side in Decode(decode).parts
        return side_names(side)[3] if is_decoded else side

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns to read: those of data files, and those for names of files and folders."""
        required_columns = ("offset", "timestamp") if self.by_date else ("offset",)
        return tuple(dict.fromkeys((*self.file_columns, *required_columns)))

    def for_topic(self, topic: str) -> ExportSettings:
        """Return the settings with the typed columns of a topic."""
        return replace(self, read=replace(self.read, typed=self.types.get(topic)), types={})

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of the data files; if columns are typed, only valid after `for_topic`."""
        schema = self.row_schema
        return schema.append(pa.field(TOMBSTONE, pa.bool_())) if self.is_latest else schema

    @property
    def row_schema(self) -> pa.Schema:
        """The schema of the data files without the tombstone column; see `file_schema`."""
        internal_columns = set(self.needed_columns) - set(self.file_columns)
        chosen = pa.schema(
            [column for column in self.read_settings.schema if column.name not in internal_columns]
        )
        return table_schema(chosen, self.format) if self.format.is_table else chosen

    @property
    def read_settings(self) -> ReadSettings:
        """The settings for reading the log records that are written to the data files."""
        return replace(self.read, columns=self.needed_columns, on_damage=OnDamage.DROP)

    def table_folder(self, topic: str) -> str:
        """Return the folder of a table."""
        return os.path.join(self.output, topic)

    def history_folder(self, topic: str) -> str:
        """Return the parent folder of the partition folders of a table."""
        table = self.table_folder(topic)
        return os.path.join(table, _HISTORY) if self.is_latest else table

    def folder_of(self, partition: TopicPartition) -> str:
        """Return the folder of a partition.

        Raises `InputError` if the topic name is illegal, because it becomes a part of the path.
        """
        target_directory(self.output, partition, "")
        topic, number = partition.topic, partition.partition
        if self.format.is_table:
            # For a folder topic=NAME, polars would add a column `topic`, although the Delta table
            # is not partitioned by topic.
            return os.path.join(self.history_folder(topic), f"{PARTITION_FOLDER}{number}")
        return os.path.join(self.output, f"topic={topic}", f"partition={number}")
