"""The export state of a partition: its exported offsets, and checks that a log matches them.

The state file is a hidden file next to the data files. It is written before the first data file,
and after each data file that extends the range. A data file after the end of the exported range is
from a killed run: the next run removes it.

The state contains header fields of the last batch of each split. A log that still contains this
batch has the same history up to the batch. Retention and compaction do not change the history. A
log that was truncated before the batch and grew again has another history, as does a topic that was
created again.
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

#: The maximum number of batches in an export state. Above it, `thin_out` removes some of the
#: earlier batches.
_MAX_BATCHES = 64
EXPORT_STATE = ".kafka-index-export.json"
#: The pattern of the names of data files. The names of staged files end with ``.staged``.
DATA_FILE: Final = (
    r"(?P<first>[0-9]{20})-(?P<last>[0-9]{20})(?:-(?P<revision>[0-9]+))?"
    r"\.(?:parquet|jsonl)(?:\.staged)?"
)
DATE_FOLDER: Final = r"date=[^/]+"
_VERSION = 1
_DataFile = Annotated[str, Meta(pattern=rf"^(?:{DATE_FOLDER}/)?{DATA_FILE}\Z")]
_OptionValue = str | bool | Int64 | list[str] | dict[str, str] | None
_TIMES = ("from_ms", "to_ms")
#: The command-line options, keyed by the option names in a state file.
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


#: The names, in a state file, of the options for decoding keys and values.
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
            message_header = np.frombuffer(header, MESSAGE_V0_HEADER, 1)[0]
            offset = int(message_header["base_offset"])
            return cls(offset, offset, NO_LEADER_EPOCH, int(message_header["crc"]), 1)
        batch_header = np.frombuffer(header, RECORD_BATCH_HEADER, 1)[0]
        base = int(batch_header["base_offset"])
        return cls(
            base,
            base + int(batch_header["last_offset_delta"]),
            int(batch_header["leader_epoch"]),
            int(batch_header["crc"]),
            int(batch_header["record_count"]),
        )


@dataclass(frozen=True, slots=True)
class DataLoss:
    """The reason why an export cannot be continued.

    Attributes
    ----------
    agreed_offset : int, optional
        The log agrees with the export on offsets before this one; None if no exported batch was
        found in the log.
    is_gap : bool
        The log agrees with the export, but deleted further records before they were exported.
    """

    reason: str
    agreed_offset: int | None
    is_gap: bool = False


def thin_out(batches: Sequence[ExportedBatch]) -> tuple[ExportedBatch, ...]:
    """Remove every second batch before the latest ones if there are more than `_MAX_BATCHES`."""
    if len(batches) <= _MAX_BATCHES:
        return tuple(batches)
    half = len(batches) - _MAX_BATCHES // 2
    return (*batches[:half:2], *batches[half:])


def find_loss(
    log: PartitionLog,
    batches: Sequence[ExportedBatch],
    next_offset: int,
    end_offset: int | None,
) -> DataLoss | None:
    """Return why an export cannot be continued with a log; None if it can be continued.

    Parameters
    ----------
    batches : sequence of ExportedBatch
        The batches of the export state.
    next_offset : int
        The first offset that was not exported.
    end_offset : int, optional
        The log end offset; None if damage hides the end of the log.
    """
    agreed_offset = missing_batch = None
    for batch in reversed(batches):
        is_in_log = _contains_batch(log, batch)
        if is_in_log:
            agreed_offset = batch.end_offset
            break
        if is_in_log is False and missing_batch is None:
            missing_batch = batch
    if end_offset is not None and end_offset < next_offset:
        reason = f"the log ends at offset {end_offset}, but was exported up to offset {next_offset}"
        return DataLoss(reason, agreed_offset)
    if missing_batch is not None:
        return DataLoss(
            "the history of the log changed: the exported batch with offsets "
            f"{missing_batch.base_offset} to {missing_batch.last_offset} (leader epoch "
            f"{missing_batch.leader_epoch}, checksum 0x{missing_batch.checksum:08x}) is missing",
            agreed_offset,
        )
    if log.log_start_offset > next_offset:
        return DataLoss(
            f"offsets {next_offset} to {log.log_start_offset - 1} were deleted from the log before "
            "they were exported",
            next_offset,
            is_gap=True,
        )
    return None


def _contains_batch(log: PartitionLog, batch: ExportedBatch) -> bool | None:
    """Return whether a log contains a batch; None if damage, retention or cleaning may hide it."""
    bases = [segment.base_offset for segment in log.segments]
    segment_number = int(np.searchsorted(bases, batch.base_offset, "right")) - 1
    if batch.last_offset < log.log_start_offset or segment_number < 0:
        return None
    segment = log.segments[segment_number]
    # The log cleaner never cleans the active segment.
    may_be_cleaned = not segment.file.is_last
    try:
        position = segment.offset_to_position(batch.base_offset)
        header = None if position is None else segment.header_at(position.position)
    except CorruptLogError:
        # The export reports this damage when it reads the records.
        return None
    if header is None:
        return None if may_be_cleaned else False
    log_batch = ExportedBatch.of_header(header)
    if log_batch.base_offset > batch.last_offset:
        is_later = log_batch.leader_epoch >= batch.leader_epoch
        return None if may_be_cleaned and is_later else False
    comparable_batch = replace(
        log_batch, checksum=batch.checksum, records=batch.records, end_offset=0
    )
    if comparable_batch != replace(batch, end_offset=0):
        return False
    is_cleaned = may_be_cleaned and (
        log_batch.records < batch.records or _has_delete_horizon(header)
    )
    return log_batch.checksum == batch.checksum or is_cleaned


def _has_delete_horizon(header: bytes) -> bool:
    """Return whether a batch has a delete horizon, which the log cleaner sets."""
    if header[MAGIC_POSITION] < MAGIC_RECORD_BATCH:
        return False
    attributes = int(np.frombuffer(header, RECORD_BATCH_HEADER, 1)[0]["attributes"])
    return bool(attributes & DELETE_HORIZON_MASK)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A range of offsets in which damaged records were skipped; `end_offset` is exclusive.

    `records` is the number of records that were exported from the range; None if an earlier version
    of kafka-index exported it.
    """

    first_offset: Offset
    end_offset: Offset
    records: Offset | None = None


@dataclass(frozen=True, slots=True)
class ReplacedRange:
    """A range of offsets whose data files a revision has replaced; `end_offset` is exclusive."""

    first_offset: Offset
    end_offset: Offset
    revision: Offset


@dataclass(frozen=True, slots=True)
class ExportState:
    """The export of a partition so far.

    A data file in a table is never changed or removed. A data file that replaces others has a
    higher revision in its name.

    Attributes
    ----------
    options : mapping
        The options that determine the rows (`state_options`).
    first_offset, next_offset : int
        The exported offsets, `next_offset` exclusive.
    topic_id : str, optional
        The topic ID in the log directory, if the directory has one.
    damaged : tuple of DamagedRange
        Ranges that a later run reads again.
    batches : tuple of ExportedBatch
        The last batches of splits. With these, a later run checks that the log has the same
        history.
    superseded : tuple of str, optional
        While staged files replace data files, the data files to remove: paths relative to the
        folder.
    revision : int
        The highest revision of a data file.
    replaced : tuple of ReplacedRange
        The replaced ranges, in the order of their replacement.
    writers : mapping of str to list of str
        The writer schemas of keys and values, if they are decoded.
    forms : mapping of str to str
        The `ColumnForm` of decoded keys and values.
    files : int, optional
        The number of data files of a table that were ever complete, including replaced files; None
        if an earlier version of kafka-index began the export.
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

    def revision_at(self, offset: int, max_revision: int = INT64_MAX) -> int:
        """Return the revision of an offset's data file, without revisions after `max_revision`."""
        for replaced_range in reversed(self.replaced):
            if (
                replaced_range.revision <= max_revision
                and replaced_range.first_offset <= offset < replaced_range.end_offset
            ):
                return replaced_range.revision
        return 0


def export_state(folder: str) -> StateFile[ExportState]:
    """Return the state file in the folder of a partition."""
    return StateFile(
        os.path.join(folder, EXPORT_STATE),
        ExportState,
        _VERSION,
        "export state",
        "choose another --output, or remove the folder to export the partition again",
    )


def state_options(settings: ExportSettings) -> dict[str, _OptionValue]:
    """Return the options that determine the rows and files of an export, as JSON values."""
    return {
        "format": settings.format.value,
        "columns": list(settings.file_columns),
        "by_date": settings.by_date,
        "isolation": settings.read.isolation.value,
        "from_ms": settings.from_ms,
        "to_ms": settings.to_ms,
        # Omitted if no time is relative, as in the state files of earlier versions of kafka-index.
        **({"relative_times": dict(settings.relative_times)} if settings.relative_times else {}),
        **({"history": settings.history.value} if settings.is_latest else {}),
        **settings.decode,
    }


def format_option(name: str, value: object) -> str:
    """Format the value of an option in a state file; times are in ISO 8601."""
    if value in (None, False):
        return "none"
    if name in _TIMES and isinstance(value, int):
        return format_time(value) or f"{value} ms"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def continue_hint(options: Mapping[str, object], name: str) -> str:
    """Return a hint with the value of an option with which an export can be continued."""
    option, value, relative = OPTION_NAMES[name], options.get(name), options.get("relative_times")
    if isinstance(relative, dict) and name in relative:
        return f"give {option} {relative[name]}"
    if isinstance(value, bool) or value is None:
        return f"{'give' if value else 'omit'} {option}"
    return f"give {option} {format_option(name, value)}"


def restore_relative_times(
    settings: ExportSettings, partitions: Iterable[PartitionFiles]
) -> ExportSettings:
    """Return settings with relative times resolved as in the first run of the same export.

    If each run resolved these times again, some records would never be exported.
    """
    if not settings.relative_times:
        return settings
    for files in partitions:
        partition = TopicPartition(files.topic, files.partition)
        state = export_state(settings.folder_of(partition)).read()
        options = {} if state is None else state.options
        if options.get("relative_times") == settings.relative_times:
            record_filter = RecordFilter(
                _time_option(options, "from_ms"), _time_option(options, "to_ms")
            )
            return replace(settings, read=replace(settings.read, record_filter=record_filter))
    return settings


def _time_option(options: Mapping[str, object], name: str) -> int | None:
    value = options.get(name)
    return value if isinstance(value, int) else None
