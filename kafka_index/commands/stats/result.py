"""The result of ``stats``: a row for each topic, replica, day or hour."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from heapq import nlargest
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.commands.stats.replica_counts import SIZE_BINS, ReplicaCounts
from kafka_index.commands.stats.request import StatsBy, StatsRequest
from kafka_index.commands.stats.sketches import SAMPLE_KEYS
from kafka_index.core.errors import Faults, KafkaIndexError, plural
from kafka_index.core.format.human import format_bytes, format_count
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.strings import bytes_to_text
from kafka_index.core.format.times import format_time
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    Meaning,
    MissingOffsets,
    PageColumns,
    Plot,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Severity,
    Status,
    report_schema,
    report_table,
)
from kafka_index.core.kernels.batch_counts import (
    SUM_BATCHES,
    SUM_BYTES,
    SUM_CODECS,
    SUM_CONTROL_BATCHES,
    SUM_FIRST_TIME,
    SUM_KEY_BYTES,
    SUM_LAST_TIME,
    SUM_NULL_KEYS,
    SUM_PLAIN_BYTES,
    SUM_RECORDS,
    SUM_TOMBSTONES,
    SUM_TRANSACTIONAL_RECORDS,
    SUM_VALUE_BYTES,
)
from kafka_index.core.schema.registry import KeyKind, SchemaKey

_DAY_MS = 86_400_000
#: The maximum number of rows on the terminal.
_SHOWN_ROWS = 40
_SHOWN_HOT_KEYS = 10
#: Codecs with a smaller share are not shown. Rates below the minimum are shown with decimals.
_MIN_SHOWN_SHARE, _MIN_INTEGER_RATE = 0.005, 100
#: Schema IDs are listed if at least this share of the values begins with an ID.
_MIN_SCHEMA_SHARE = 0.5


class CountStatus(StrEnum):
    """Whether all batches of a row were counted."""

    COUNTED = "counted"
    #: Corrupt ranges were skipped.
    DAMAGED = "damaged"
    #: A log could not be read.
    FAILED = "failed"


_MEANINGS: Mapping[CountStatus, tuple[Severity, str]] = {
    CountStatus.COUNTED: (GOOD, "all batches were counted"),
    CountStatus.DAMAGED: (BAD, "corrupt ranges were skipped"),
    CountStatus.FAILED: (BAD, "a log could not be read completely"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsRow:
    """A row of the report, with its columns."""

    topic: str
    partition: int | None = None
    path: str | None = None
    status: CountStatus = CountStatus.COUNTED
    reason: str | None = None
    broker: str | None = None
    is_base: bool | None = None
    replicas: int | None = None
    start_timestamp_ms: int | None = None
    records: int
    size_bytes: int
    batches: int
    control_batches: int
    records_per_batch: float | None = None
    log_start_offset: int | None = None
    end_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    records_per_second: float | None = None
    bytes_per_day: float | None = None
    cumulative_bytes: int | None = None
    deleted_bytes: int | None = None
    producers: int | None = None
    transactional_records: int | None = None
    transactional_share: float | None = None
    bytes_none: int | None = None
    bytes_gzip: int | None = None
    bytes_snappy: int | None = None
    bytes_lz4: int | None = None
    bytes_zstd: int | None = None
    key_bytes: int | None = None
    value_bytes: int | None = None
    null_keys: int | None = None
    tombstones: int | None = None
    uncompressed_bytes: int | None = None
    compression_ratio: float | None = None
    key_sizes: str | None = None
    value_sizes: str | None = None
    schema_ids: str | None = None
    distinct_keys: int | None = None
    distinct_keys_error: float | None = None
    hot_keys: str | None = None
    stays_bytes: int | None = None
    goes_bytes: int | None = None
    stays_records: int | None = None
    goes_records: int | None = None
    log_start_after: int | None = None

    @property
    def codecs(self) -> list[tuple[str, int]]:
        """The codecs with their bytes, largest first."""
        sizes = [(name, getattr(self, f"bytes_{name}") or 0) for name in COMPRESSION_NAMES]
        return sorted((item for item in sizes if item[1]), key=lambda item: -item[1])


_COMMON_COLUMNS = report_schema([]).names
_ARROW_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
STATS_REPORT_SCHEMA = report_schema(
    [
        (field.name, _ARROW_TYPES[str(field.type).removesuffix(" | None")])
        for field in fields(StatsRow)
        if field.name not in _COMMON_COLUMNS
    ],
    required=("topic", "status", "records", "size_bytes", "batches"),
)
STATS_REPORT = ReportSpec(
    STATS_REPORT_SCHEMA,
    PageColumns(
        "rows",
        ("status",),
        {status.value: Meaning(severity, text) for status, (severity, text) in _MEANINGS.items()},
        plots=(
            Plot("Bytes", "size_bytes", "bytes"),
            Plot("Records", "records", "records"),
            Plot("Remaining bytes", "stays_bytes", "bytes"),
            Plot("Deleted bytes", "goes_bytes", "bytes"),
            Plot("Distinct keys", "distinct_keys", "keys"),
            Plot("Sizes of keys", "key_sizes", "records", is_histogram=True),
            Plot("Sizes of values", "value_sizes", "records", is_histogram=True),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Remainder:
    """Bytes and records that retention or compaction would keep (`stays_`) or delete (`goes_`)."""

    stays_bytes: int
    goes_bytes: int
    stays_records: int
    goes_records: int
    log_start_after: int | None = None

    def plus(self, more: Remainder) -> Remainder:
        """Add the remainder of another replica; the sum has no log start offset."""
        return Remainder(
            self.stays_bytes + more.stays_bytes,
            self.goes_bytes + more.goes_bytes,
            self.stays_records + more.stays_records,
            self.goes_records + more.goes_records,
        )


def make_row(
    topic: str,
    sums: NDArray[np.int64],
    counts: ReplicaCounts | None,
    request: StatsRequest,
    length_ms: int = 0,
) -> StatsRow:
    """Return a row of the report, from its sums; `counts` is None for an hour or a day.

    `length_ms` is the length of the hour or day. If it is 0, rates refer to the time between the
    first and the last timestamp.
    """
    total = sums.sum(axis=0)
    batches, records, size_bytes = (
        int(total[column]) for column in (SUM_BATCHES, SUM_RECORDS, SUM_BYTES)
    )
    last_time = int(sums[:, SUM_LAST_TIME].max(initial=-1))
    first_time = int(sums[:, SUM_FIRST_TIME].min(initial=np.iinfo(np.int64).max))
    has_times = 0 <= first_time <= last_time
    span_ms = length_ms or (last_time - first_time if has_times else 0)
    transactional = int(total[SUM_TRANSACTIONAL_RECORDS])
    data_batches = batches - int(total[SUM_CONTROL_BATCHES])
    columns: dict[str, Any] = {
        f"bytes_{name}": int(total[SUM_CODECS + codec])
        for codec, name in enumerate(COMPRESSION_NAMES)
    }
    if request.sizes:
        columns |= {
            "key_bytes": int(total[SUM_KEY_BYTES]),
            "value_bytes": int(total[SUM_VALUE_BYTES]),
            "null_keys": int(total[SUM_NULL_KEYS]),
            "tombstones": int(total[SUM_TOMBSTONES]),
            "uncompressed_bytes": int(total[SUM_PLAIN_BYTES]),
            "compression_ratio": int(total[SUM_PLAIN_BYTES]) / size_bytes if size_bytes else None,
        }
    if counts is not None:
        columns |= _replica_columns(counts, request)
    return StatsRow(
        topic=topic,
        records=records,
        size_bytes=size_bytes,
        batches=batches,
        control_batches=int(total[SUM_CONTROL_BATCHES]),
        records_per_batch=records / data_batches if data_batches else None,
        first_timestamp_ms=first_time if has_times else None,
        last_timestamp_ms=last_time if has_times else None,
        records_per_second=1000 * records / span_ms if span_ms else None,
        bytes_per_day=_DAY_MS * size_bytes / span_ms if span_ms else None,
        transactional_records=transactional,
        transactional_share=transactional / records if records else None,
        **columns,
    )


def fault_columns(faults: Faults) -> dict[str, Any]:
    """Return the status and the reason, if a range was skipped."""
    if not faults.total:
        return {}
    is_failed = True in faults.retriable
    status = CountStatus.FAILED if is_failed else CountStatus.DAMAGED
    return {"status": status, "reason": str(faults.first[0])}


def _replica_columns(counts: ReplicaCounts, request: StatsRequest) -> dict[str, Any]:
    """Return the columns that are not counted by hour or day."""
    columns: dict[str, Any] = {
        "deleted_bytes": counts.deleted_bytes,
        "producers": counts.producers.distinct,
    }
    columns |= fault_columns(counts.faults)
    if request.sizes:
        values = int(counts.value_sizes.sum())
        ids = counts.schema_ids.keys
        columns |= {
            "key_sizes": _format_histogram(counts.key_sizes),
            "value_sizes": _format_histogram(counts.value_sizes),
        }
        if ids.total() > _MIN_SCHEMA_SHARE * values:
            counts_by_name = {_schema_name(key): ids[key] for key in sorted(ids, key=str)}
            columns["schema_ids"] = json.dumps(counts_by_name)
    if counts.hot is not None:
        hot = [
            {"key": bytes_to_text(key), "count": count, "error": error}
            for key, count, error in counts.hot.top()
        ]
        columns["hot_keys"] = json.dumps(hot)
    if request.keys is not None or request.compact:
        columns["distinct_keys"] = counts.keys.distinct
        columns["distinct_keys_error"] = counts.keys.relative_error
    return columns


def _schema_name(key: SchemaKey) -> str:
    """Format a Confluent ID as a number, and another key with its kind."""
    return str(key.value) if key.kind is KeyKind.ID else str(key)


def _format_histogram(bins: Longs) -> str:
    """Format the counts of bins as JSON, keyed by the smallest size of a bin."""
    return json.dumps(
        {
            str(0 if size_bin == 0 else 1 << (size_bin - 1)): int(bins[size_bin])
            for size_bin in range(SIZE_BINS)
            if bins[size_bin]
        }
    )


class LogStats(Result):
    """The result of `read_stats`: a row for each topic, replica, day or hour.

    Parameters
    ----------
    rows : sequence of StatsRow
        The rows, as in ``stats --report``.
    request : StatsRequest
        The parameters.
    faults : Faults
        The corrupt and unreadable ranges that were skipped.
    missing : MissingOffsets
        The missing offsets in all logs.
    log_bytes : int
        The size of the logs.
    data_directories : tuple of str
        The directories that were read.
    unread : tuple of str
        Input entries that were not read, with reasons.
    skipped : tuple of (str, str)
        Input entries that a broker would not load, with reasons.
    """

    command = "stats"
    status_header = ("counted", "records", "batches", "bytes")

    def __init__(
        self,
        rows: Sequence[StatsRow],
        request: StatsRequest,
        faults: Faults,
        missing: MissingOffsets,
        log_bytes: int,
        data_directories: Sequence[str] = (),
        unread: Sequence[str] = (),
        skipped: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._rows, self._request, self._log_bytes = list(rows), request, log_bytes
        self._faults, self._missing = faults, missing
        self._data_directories = tuple(data_directories)
        self._unread, self._skipped = tuple(unread), tuple(skipped)

    @property
    def damage(self) -> tuple[KafkaIndexError, ...]:
        """The first errors of corrupt and unreadable ranges that were skipped."""
        return tuple(self._faults.first)

    @property
    def unread(self) -> Sequence[str]:
        """Input entries that were not read, with reasons."""
        return self._unread

    @property
    def skipped(self) -> Sequence[tuple[str, str]]:
        """Input entries that a broker would not load: paths with reasons."""
        return self._skipped

    @property
    def _rows_without_replicas(self) -> list[StatsRow]:
        """The rows that count each partition once."""
        if self._request.by is StatsBy.PARTITION:
            return [row for row in self._rows if row.is_base]
        if self._request.by is StatsBy.TOPIC:
            return [row for row in self._rows if row.broker is None]
        return self._rows

    @property
    def headline(self) -> str:
        """The number of records, bytes, topics and skipped ranges."""
        counts = self.counts
        counts_text = (
            f"{plural(counts['records'], 'record')} of {plural(counts['topics'], 'topic')}, "
            f"{format_bytes(self.sizes_bytes['batches'])} in "
            f"{plural(counts['batches'], 'batch', 'batches')}"
        )
        skipped = self._faults.total
        noun = plural(skipped, "corrupt or unreadable range")
        return f"{counts_text}; {noun} skipped" if skipped else counts_text

    @property
    def statuses(self) -> list[Status]:
        """The first rows: the largest topics and partitions, or the last hours and days."""
        return [
            Status(
                _row_name(row),
                (row.records, row.batches),
                _MEANINGS[row.status][0],
                _describe_row(row),
                row.size_bytes,
            )
            for row in self._shown_rows
        ]

    @property
    def _shown_rows(self) -> list[StatsRow]:
        rows, numbers = self._rows, range(len(self._rows))
        if self._request.by.milliseconds:
            row_numbers = nlargest(
                _SHOWN_ROWS, numbers, lambda n: (rows[n].start_timestamp_ms or 0, n)
            )
        else:
            row_numbers = nlargest(_SHOWN_ROWS, numbers, lambda n: rows[n].size_bytes)
        return [rows[number] for number in sorted(row_numbers)]

    @property
    def facts(self) -> list[str]:
        """The scope of the counts, and which numbers are estimates."""
        facts = []
        if len(self._rows) > _SHOWN_ROWS:
            order = "last" if self._request.by.milliseconds else "largest"
            row_counts = f"{_SHOWN_ROWS} of {len(self._rows):,} rows"
            facts.append(f"only the {order} {row_counts} are shown; --report FILE writes all rows")
        if not self._reads_records:
            facts.append("only batch headers were read; checksums were not verified")
        deleted = sum(row.deleted_bytes or 0 for row in self._rows_without_replicas)
        if deleted:
            facts.append(
                f"{format_bytes(deleted)} of deleted batches before the log start offsets were not "
                "counted"
            )
        if any(row.distinct_keys_error for row in self._rows):
            error = max(row.distinct_keys_error or 0 for row in self._rows)
            estimates = "remaining records" if self._request.compact else "distinct keys"
            facts.append(
                f"numbers of {estimates} are estimates for more than {SAMPLE_KEYS:,} keys "
                f"(standard error {error:.1%})"
            )
        if any((row.replicas or 0) > 1 and row.broker is not None for row in self._rows) or any(
            row.is_base is False for row in self._rows
        ):
            facts.append("totals count one replica of each partition")
        return facts

    @property
    def _reads_records(self) -> bool:
        request = self._request
        return request.sizes or request.keys is not None or request.compact

    @property
    def sections(self) -> list[Section]:
        """Hot keys by row, and the skipped ranges."""
        sections = []
        for row in self._shown_rows:
            hot = json.loads(row.hot_keys) if row.hot_keys else []
            key_lines = [
                f"{key['count']:,}{_format_error(key['error'])}  {key['key']}"
                for key in hot[:_SHOWN_HOT_KEYS]
            ]
            if key_lines:
                title = f"hot keys of {_row_name(row)}:"
                sections.append(Section(title, key_lines, GOOD, len(hot), "key", shows_all=True))
        noun = plural(self._faults.total, "corrupt or unreadable range")
        key_lines = list(map(str, self._faults.first))
        return [*sections, Section(f"{noun} skipped:", key_lines, BAD, self._faults.total, "range")]

    @property
    def work_bytes(self) -> int:
        """The size of the logs, 0 if only headers were read."""
        return self._log_bytes if self._reads_records else 0

    @property
    def next_command(self) -> str | None:
        """The `verify` command for the first data directory, if records are corrupt or lost."""
        is_damaged = False in self._faults.retriable or self._missing.lost
        if not (is_damaged and self._data_directories):
            return None
        return shlex.join(["kafka-index", "verify", "--input", self._data_directories[0]])

    @property
    def outcome(self) -> RunOutcome:
        """Damage if ranges are corrupt or offsets are lost; environment if a read failed."""
        failures = (*self.unread, *self._missing.lost)
        return RunOutcome.of_faults(self._faults.retriable).with_damage(failures)

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets in all logs."""
        return self._missing

    @property
    def counts(self) -> Mapping[str, int]:
        """Topics, records and batches, with each partition counted once; and skipped ranges."""
        rows = self._rows_without_replicas
        return {
            "topics": len({row.topic for row in rows}),
            "rows": len(self._rows),
            "records": sum(row.records for row in rows),
            "batches": sum(row.batches for row in rows),
            "damage": self._faults.total,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """The size of the counted batches, with each partition counted once; and of all logs."""
        return {
            "batches": sum(row.size_bytes for row in self._rows_without_replicas),
            "logs": self._log_bytes,
        }

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_table(self._rows, STATS_REPORT_SCHEMA)


def _row_name(row: StatsRow) -> str:
    name = row.topic if row.partition is None else f"{row.topic}-{row.partition}"
    if row.start_timestamp_ms is not None:
        start_time = format_time(row.start_timestamp_ms)
        return (
            f"{name} {row.start_timestamp_ms} ms"
            if start_time is None
            else f"{name} {start_time[:16]}"
        )
    if row.broker is None:
        return name
    return f"{name} on broker {row.broker}" if row.broker.isdecimal() else f"{name} in {row.broker}"


def _describe_row(row: StatsRow) -> str:
    """Return the codecs, rates and other numbers of a row as text."""
    details = []
    if row.stays_bytes is not None:
        details.append(
            f"{format_bytes(row.stays_bytes)} remain "
            f"({plural(row.stays_records or 0, 'record')}), "
            f"{format_bytes(row.goes_bytes or 0)} deleted ({format_count(row.goes_records or 0)})"
        )
    if row.codecs:
        total = sum(size for _, size in row.codecs)
        shares = [(name, size / total) for name, size in row.codecs]
        details.append(
            ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= _MIN_SHOWN_SHARE)
        )
    if row.compression_ratio is not None:
        details.append(f"compression ratio {row.compression_ratio:.1f}")
    if row.distinct_keys is not None:
        prefix = "about " if row.distinct_keys_error else ""
        details.append(f"{prefix}{plural(row.distinct_keys, 'distinct key')}")
    if row.transactional_share:
        details.append(f"{row.transactional_share:.0%} transactional")
    if row.records_per_second is not None:
        rate = row.records_per_second
        details.append(
            f"{rate:,.0f} records/s" if rate >= _MIN_INTEGER_RATE else f"{rate:.3g} records/s"
        )
    if row.reason is not None:
        details.append(row.status)
    return "; ".join(details)


def _format_error(error: int) -> str:
    return f" (error at most {error:,})" if error else ""
