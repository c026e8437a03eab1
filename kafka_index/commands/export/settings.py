"""The settings of an export."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kafka_index.commands.export.request import ExportFormat
from kafka_index.commands.export.table_schema import table_schema
from kafka_index.core.errors import InputError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.paths import target_directory
from kafka_index.core.query.choices import OnDamage
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.record_table import DEFAULT_COLUMNS

#: What the names of the folders hold, as in Hive: these columns are in no file of Parquet or JSON.
FOLDER_COLUMNS = ("topic", "partition")
#: The columns of a table by which rows are replaced.
_TABLE_COLUMNS = ("topic", "partition", "offset")
#: After the names of data files that are not in their place yet.
STAGED_ENDING = ".staged"


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The settings of an export; small, and picklable.

    The output is an absolute path or a URI. Columns are names in `RECORD_SCHEMA`; topic and
    partition become the names of folders, and `by_date` adds a folder for each day of the
    timestamps, in UTC. Columns and the action at damage of `read` are set here. `relative_times`
    are ``from_ms`` and ``to_ms`` as they were given, if that is relative to now. `is_staged`: data
    files are written aside, under names that no reader of a table takes for one. `revision` is that
    of the data files (`ExportState`).
    """

    output: str
    format: ExportFormat = ExportFormat.PARQUET
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    by_date: bool = False
    read: ReadSettings = field(default_factory=ReadSettings)
    relative_times: Mapping[str, str] = field(default_factory=dict)
    is_staged: bool = False
    revision: int = 0

    @property
    def from_ms(self) -> int | None:
        """From when on records are exported."""
        return None if self.read.record_filter is None else self.read.record_filter.from_ms

    @property
    def to_ms(self) -> int | None:
        """Before when records are exported."""
        return None if self.read.record_filter is None else self.read.record_filter.to_ms

    def __post_init__(self) -> None:
        ReadSettings(columns=self.columns).schema  # noqa: B018, because it checks the names
        if not self.file_columns:
            raise InputError(
                "no column for the files: topic and partition are the names of the folders",
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
        """The columns of the data files."""
        if self.format.is_table:
            needed = (*_TABLE_COLUMNS, *(("timestamp",) if self.by_date else ()))
            return tuple(dict.fromkeys((*self.columns, *needed)))
        return tuple(name for name in self.columns if name not in FOLDER_COLUMNS)

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of the data files, with their types."""
        schema = self.read_settings.schema
        chosen = pa.schema([schema.field(name) for name in self.file_columns])
        return table_schema(chosen, self.format) if self.format.is_table else chosen

    @property
    def read_settings(self) -> ReadSettings:
        """The settings of the read: the columns for the files, and for the names of files."""
        needed = ("offset", "timestamp") if self.by_date else ("offset",)
        columns = dict.fromkeys((*self.file_columns, *needed))
        return replace(self.read, columns=tuple(columns), on_damage=OnDamage.DROP)

    def folder_of(self, partition: TopicPartition) -> str:
        """Return the folder of a partition.

        Raises `InputError` if the topic is not legal, and must not become part of a path.
        """
        target_directory(self.output, partition, "")
        topic, number = partition.topic, partition.partition
        if self.format.is_table:
            # polars takes topic=NAME in the path of a file for a column that Delta does not know.
            return os.path.join(self.output, topic, f"partition-{number}")
        return os.path.join(self.output, f"topic={topic}", f"partition={number}")
