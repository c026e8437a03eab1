"""The state of an export: the exported offsets of a partition, and checks that a log matches them.

The state file is a hidden file next to the data files. It is written before the first data file,
and after each data file that extends the range. A data file after the exported end is from a killed
run: the next run removes it.

The state has the header fields of the last batch of each split. A log that still has this batch has
the same history up to it. Retention and compaction do not change a history. A log that was
truncated and grew again, or a topic that was created again, has another history.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Self

import numpy as np
from msgspec import Meta

from kafka_index.commands.export.settings import ExportSettings
from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.records import (
    DELETE_HORIZON_MASK,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    NO_LEADER_EPOCH,
    RECORD_BATCH_HEADER,
)
from kafka_index.core.format.state_files import Crc32, Int64, Offset
from kafka_index.core.format.times import format_time
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.output.output import StateFile
from kafka_index.core.query.settings import RecordFilter

#: The state has the last batches of this many splits, and a sample of earlier batches.
_MAX_KEPT = 64
EXPORT_STATE = ".kafka-index-export.json"
#: The names of data files; staged files in an object store have one more suffix.
DATA_FILE: Final = (
    r"(?P<first>[0-9]{20})-(?P<last>[0-9]{20})(?:-(?P<revision>[0-9]+))?"
    r"\.(?:parquet|jsonl)(?:\.staged)?"
)
DATE_FOLDER: Final = r"date=[^/]+"
_VERSION = 1
_DataFile = Annotated[str, Meta(pattern=rf"^(?:{DATE_FOLDER}/)?{DATA_FILE}\Z")]
_OptionValue = str | bool | Int64 | list[str] | dict[str, str] | None
_TIMES = ("from_ms", "to_ms")
#: The options by their names in a state file.
OPTION_NAMES: Final = {
    "format": "--format",
    "columns": "--columns",
    "by_date": "--by-date",
    "isolation": "--isolation",
    "from_ms": "--from",
    "to_ms": "--to",
    "relative_times": "--from and --to",
    "history": "--history",
    "decode": "--decode",
    "value_schema": "--value-schema",
    "schema_context": "--schema-context",
}


#: The options of typed columns.
DECODE_OPTIONS: Final = ("decode", "value_schema", "schema_context")


@dataclass(frozen=True, slots=True)
class ExportedBatch:
    """Header fields of the last exported batch of a split.

    The leader epoch is -1 for message formats v0 and v1. `end_offset` is the exclusive end of the
    split.
    """

    base_offset: Offset
    last_offset: Offset
    leader_epoch: Int64
    checksum: Crc32
    records: Int64
    end_offset: Offset = 0

    @classmethod
    def of_header(cls, header: bytes) -> Self:
        """Parse the header of a batch."""
        if header[MAGIC_POSITION] < MAGIC_RECORD_BATCH:
            old = np.frombuffer(header, MESSAGE_V0_HEADER, 1)[0]
            offset = int(old["base_offset"])
            return cls(offset, offset, NO_LEADER_EPOCH, int(old["crc"]), 1)
        new = np.frombuffer(header, RECORD_BATCH_HEADER, 1)[0]
        base = int(new["base_offset"])
        return cls(
            base,
            base + int(new["last_offset_delta"]),
            int(new["leader_epoch"]),
            int(new["crc"]),
            int(new["record_count"]),
        )


@dataclass(frozen=True, slots=True)
class DataLoss:
    """The reason why an export cannot be continued.

    Log and export agree on the records before `agreed_offset`, or on none if it is None. `is_gap`:
    all exported records are right, and only later offsets are missing.
    """

    reason: str
    agreed_offset: int | None
    is_gap: bool = False


def thinned(batches: Sequence[ExportedBatch]) -> tuple[ExportedBatch, ...]:
    """Return the latest batches; if there are many, only every second of the earlier batches."""
    if len(batches) <= _MAX_KEPT:
        return tuple(batches)
    half = len(batches) - _MAX_KEPT // 2
    return (*batches[:half:2], *batches[half:])


def find_loss(
    log: PartitionLog,
    batches: Sequence[ExportedBatch],
    next_offset: int,
    end_offset: int | None,
) -> DataLoss | None:
    """Return why an export cannot be continued with a log; None if it can.

    The batches are from the export state, and `next_offset` is the first offset that was not
    exported. The end of the log is None if damage hides it.
    """
    agreed = missing = None
    for one in reversed(batches):
        has_it = _has(log, one)
        if has_it:
            agreed = one.end_offset
            break
        if has_it is False and missing is None:
            missing = one
    if end_offset is not None and end_offset < next_offset:
        reason = f"the log ends at offset {end_offset}, and was exported up to {next_offset}"
        return DataLoss(reason, agreed)
    if missing is not None:
        return DataLoss(
            "the log has another history: it does not have the batch of offsets "
            f"{missing.base_offset} to {missing.last_offset} that was exported (leader epoch "
            f"{missing.leader_epoch}, checksum 0x{missing.checksum:08x})",
            agreed,
        )
    if log.log_start_offset > next_offset:
        return DataLoss(
            f"offsets {next_offset} to {log.log_start_offset - 1} were deleted from the log before "
            "they were exported",
            next_offset,
            is_gap=True,
        )
    return None


def _has(log: PartitionLog, batch: ExportedBatch) -> bool | None:
    """Return whether a log has a batch; None if that is unknown."""
    bases = [segment.base_offset for segment in log.segments]
    number = int(np.searchsorted(bases, batch.base_offset, "right")) - 1
    if batch.last_offset < log.log_start_offset or number < 0:
        return None
    segment = log.segments[number]
    # The log cleaner never cleans the active segment.
    may_be_cleaned = not segment.file.is_last
    try:
        place = segment.offset_to_position(batch.base_offset)
        header = None if place is None else segment.header_at(place.position)
    except CorruptLogError:
        # The read of the records reports the damage.
        return None
    if header is None:
        return None if may_be_cleaned else False
    found = ExportedBatch.of_header(header)
    if found.base_offset > batch.last_offset:
        is_later = found.leader_epoch >= batch.leader_epoch
        return None if may_be_cleaned and is_later else False
    same = replace(found, checksum=batch.checksum, records=batch.records, end_offset=0)
    if same != replace(batch, end_offset=0):
        return False
    is_cleaned = may_be_cleaned and (found.records < batch.records or _has_horizon(header))
    return found.checksum == batch.checksum or is_cleaned


def _has_horizon(header: bytes) -> bool:
    """Return whether a batch has a delete horizon, which the log cleaner sets."""
    if header[MAGIC_POSITION] < MAGIC_RECORD_BATCH:
        return False
    attributes = int(np.frombuffer(header, RECORD_BATCH_HEADER, 1)[0]["attributes"])
    return bool(attributes & DELETE_HORIZON_MASK)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets, the end exclusive, with records that were skipped because of damage.

    `records` counts the exported records; None if an earlier version has not counted them.
    """

    first_offset: Offset
    end_offset: Offset
    records: Offset | None = None


@dataclass(frozen=True, slots=True)
class ReplacedRange:
    """Offsets, the end exclusive, whose data files were replaced by a revision."""

    first_offset: Offset
    end_offset: Offset
    revision: Offset


@dataclass(frozen=True, slots=True)
class ExportState:
    """The export of a partition so far.

    The options decide the rows: `state_options`. The offsets from the first to the next,
    exclusive, have been exported; the log directory may have the topic id. A later run reads the
    damaged ranges again. `batches` are the last ones of splits, which the log has to have to be
    continued. `superseded` are data files that are removed, below the folder; then the files next
    to them are taking their place. `writers` are what typed keys and values were written with, and
    `forms` the forms of their columns, by part.

    Files in a table are never changed or removed here. A file that replaces others has a higher
    `revision` in its name, and `replaced` has the ranges, the latest last. `files` counts the data
    files of a table that were ever complete, replaced ones too; None if an earlier version has not
    counted them.
    """

    options: Mapping[str, _OptionValue]
    first_offset: Offset
    next_offset: Offset
    topic_id: str | None = None
    damaged: tuple[DamagedRange, ...] = ()
    batches: tuple[ExportedBatch, ...] = ()
    superseded: tuple[_DataFile, ...] | None = None
    revision: Offset = 0
    replaced: tuple[ReplacedRange, ...] = ()
    writers: Mapping[str, list[str]] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)
    files: Offset | None = None

    def revision_at(self, offset: int, most: int = INT64_MAX) -> int:
        """Return the revision of the data file of an offset, when `most` was the last one."""
        for one in reversed(self.replaced):
            if one.revision <= most and one.first_offset <= offset < one.end_offset:
                return one.revision
        return 0


def export_state(folder: str) -> StateFile[ExportState]:
    """Return the state file in the folder of a partition."""
    return StateFile(
        os.path.join(folder, EXPORT_STATE),
        ExportState,
        _VERSION,
        "export state",
        "choose another --output, or remove the partition's folder to export it again",
    )


def state_options(settings: ExportSettings) -> dict[str, _OptionValue]:
    """Return the options that decide the rows and files of an export, as in JSON."""
    return {
        "format": settings.format.value,
        "columns": list(settings.file_columns),
        "by_date": settings.by_date,
        "isolation": settings.read.isolation.value,
        "from_ms": settings.from_ms,
        "to_ms": settings.to_ms,
        # Omitted if there are none, as in earlier versions.
        **({"relative_times": dict(settings.relative_times)} if settings.relative_times else {}),
        **({"history": settings.history.value} if settings.is_latest else {}),
        **settings.decode,
    }


def value_text(name: str, value: object) -> str:
    """Return the value of an option in a state file, a time as ISO 8601."""
    if value in (None, False):
        return "none"
    if name in _TIMES and isinstance(value, int):
        return format_time(value) or f"{value} ms"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def option_again(options: Mapping[str, object], name: str) -> str:
    """Return a hint how to continue an export if an option differs from its state."""
    option, value, relative = OPTION_NAMES[name], options.get(name), options.get("relative_times")
    if isinstance(relative, dict) and name in relative:
        return f"give {option} {relative[name]}"
    if isinstance(value, bool) or value is None:
        return f"{'give' if value else 'omit'} {option}"
    return f"give {option} {value_text(name, value)}"


def with_first_times(
    settings: ExportSettings, partitions: Iterable[PartitionFiles]
) -> ExportSettings:
    """Return settings with the relative times of the first run of the same export.

    An export that is continued reads new records: with another end in each run, records would be
    passed over for good.
    """
    if not settings.relative_times:
        return settings
    for one in partitions:
        partition = TopicPartition(one.topic, one.partition)
        state = export_state(settings.folder_of(partition)).read()
        options = {} if state is None else state.options
        if options.get("relative_times") == settings.relative_times:
            kept = RecordFilter(_time(options, "from_ms"), _time(options, "to_ms"))
            return replace(settings, read=replace(settings.read, record_filter=kept))
    return settings


def _time(options: Mapping[str, object], name: str) -> int | None:
    value = options.get(name)
    return value if isinstance(value, int) else None
