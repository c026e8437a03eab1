"""Results whose records are read or searched while the caller iterates over them."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import ClassVar

import pyarrow as pa

from kafka_index.core.errors import Faults, InputError, KafkaIndexError, plural
from kafka_index.core.format.human import format_bytes
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.times import describe_empty_range
from kafka_index.core.fs.inputs import collecting_unread, skipped_texts, unread_texts
from kafka_index.core.job.result import BAD, MissingOffsets, Result, RunOutcome, Section
from kafka_index.core.query.bounds import time_span
from kafka_index.core.query.matches import SplitMatches
from kafka_index.core.query.missing_records import MissingInRead
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.records import ListedPartitions
from kafka_index.core.schema.columns import count_errors

_SPLITS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)


class RecordStream(Result):
    """Records that are read on each iteration, from the start.

    `ok`, `counts` and `damage` describe the last completed iteration.
    """

    #: Past participle for the headline.
    _verb: ClassVar[str] = "read"

    def __init__(self, plan: ReadPlan, unread: Sequence[str]) -> None:
        self._plan, self._unread_paths = plan, tuple(unread)
        self._read_unread: tuple[str, ...] = ()
        self._records: int | None = None
        self._faults = Faults()
        self._missing = MissingOffsets()
        self._decode_errors: Mapping[str, int] = {}

    @abstractmethod
    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Read all records, and yield Arrow batches; closing the generator ends the read."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read from the start, and yield Arrow record batches of a few MiB."""
        return self.batches()

    def _finish_read(
        self,
        records: int,
        faults: Faults,
        missing_offsets: MissingOffsets,
        unread_paths: Sequence[str],
        decode_errors: Mapping[str, int],
    ) -> None:
        """Store the findings of a completed read."""
        self._records, self._faults, self._missing = records, faults, missing_offsets
        self._decode_errors = dict(sorted(decode_errors.items()))
        self._read_unread = tuple(unread_paths)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records."""
        return self._plan.settings.schema

    @property
    def damage(self) -> tuple[KafkaIndexError, ...]:
        """The errors of the first corrupt ranges that the last read skipped."""
        return tuple(self._faults.first)

    @property
    def unread(self) -> Sequence[str]:
        """Input entries that were not read, with reasons."""
        return tuple(dict.fromkeys((*self._unread_paths, *self._read_unread)))

    @property
    def missing_offsets(self) -> MissingOffsets:
        """Missing offsets in the logs that the last iteration read."""
        return self._missing

    @property
    def decode_errors(self) -> Mapping[str, int]:
        """The numbers of keys and values that did not decode in the last read, by error code."""
        return self._decode_errors

    def reader(self) -> pa.RecordBatchReader:
        """Return a record batch reader over all records, for code that requires such a reader."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def head(self, rows: int = 10) -> pa.Table:
        """Return the first records, without reading all records."""
        batches: list[pa.RecordBatch] = []
        with closing(self.batches()) as batches_read:
            for batch in batches_read:
                batches.append(batch.slice(0, rows))
                rows -= len(batches[-1])
                if rows <= 0:
                    break
        return pa.Table.from_batches(batches, schema=self.schema)

    def to_arrow(self) -> pa.Table:
        """Return all records as a table."""
        return pa.Table.from_batches(iter(self), schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the records through Arrow's C stream interface while they are read."""
        return self.reader().__arrow_c_stream__(requested_schema)

    @property
    def headline(self) -> str:
        """The number of records, or before the records are read, the amount of data to read."""
        scope = f"{format_bytes(self._plan.size_bytes)} in {plural(self._partitions, 'partition')}"
        if self._records is None:
            return f"not {self._verb} yet: {scope}; head() returns the first records"
        headline = self._records_text(self._records, scope)
        skipped = self._faults.total
        return f"{headline}; {_ranges(skipped)} skipped" if skipped else headline

    def _records_text(self, records: int, scope: str) -> str:
        """Return the number of records, and the amount of data read."""
        return f"{plural(records, 'record')}; {self._verb} {scope}"

    @property
    def sections(self) -> Sequence[Section]:
        """The corrupt ranges that were skipped, and the keys and values that did not decode."""
        title = f"{_ranges(self._faults.total)} skipped:"
        lines = list(map(str, self._faults.first))
        return [
            Section(title, lines, BAD, self._faults.total, "range"),
            decode_section(self._decode_errors),
        ]

    @property
    def outcome(self) -> RunOutcome:
        """Damage if data is corrupt or lost or did not decode, environment if a read failed.

        Raises `InputError` before an iteration has completed.
        """
        if self._records is None:
            raise InputError(
                f"the records were not {self._verb} to the end yet",
                hint="iterate to the end, or call to_arrow()",
            )
        damage = (*self.unread, *self._missing.lost, *self._decode_errors)
        return RunOutcome.of_faults(self._faults.retriable).with_damage(damage)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of records, partitions, skipped corrupt ranges, and decoding errors."""
        return {
            "records": self._records or 0,
            "partitions": self._partitions,
            "damage": self._faults.total,
            **decode_counts(self._decode_errors),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Size of the log data to read."""
        return {"logs": self._plan.size_bytes}

    @property
    def _partitions(self) -> int:
        return len({(split.topic, split.partition) for split in self._plan.splits})

    def _preview_rows(self) -> pa.Table:
        """Return a row per partition, computed from its splits without reading records."""
        rows = []
        for (topic, partition), partition_splits in groupby(
            self._plan.splits, lambda split: (split.topic, split.partition)
        ):
            splits = list(partition_splits)
            last_offset = splits[-1].last_offset
            rows.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "first_offset": splits[0].first_offset,
                    "last_offset": None if last_offset == INT64_MAX else last_offset,
                    "size_bytes": sum(split.size_bytes for split in splits),
                }
            )
        return pa.Table.from_pylist(rows, schema=_SPLITS)

    def _format_hidden_count(self, count: int) -> str:
        return f"and {plural(count, 'more partition')}"

    def _outcome_word(self) -> str:
        return f"not {self._verb} yet" if self._records is None else super()._outcome_word()


class SearchedRecords(RecordStream):
    """Records that are searched split by split; corrupt ranges are skipped.

    The search ends after `limit` records. `faults` are the errors of partitions whose read could
    not be planned.
    """

    def __init__(
        self,
        partitions: ListedPartitions,
        plan: ReadPlan,
        limit: int | None,
        unread: Sequence[str],
        faults: Sequence[KafkaIndexError] = (),
    ) -> None:
        super().__init__(plan, unread)
        self._partition_list, self._limit = partitions, limit
        self._plan_faults = tuple(faults)
        self._notes: tuple[str, ...] = ()

    @abstractmethod
    def _matches(self) -> Generator[SplitMatches, None, None]:
        """Yield the matching records; closing the generator ends the search."""

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Search from the start, and yield the matching records."""
        records, faults, decode_errors = 0, Faults(), Counter[str]()
        faults.add(*self._plan_faults)
        missing_in_read = MissingInRead(self._plan.partitions, self._plan.finder)
        with collecting_unread() as unread, closing(self._matches()) as results:
            for matches in results:
                missing_in_read.add(matches.read_logs, matches.batches)
                faults.add(*matches.errors)
                faults.add_damage(matches.unlisted_errors)
                decode_errors.update(matches.unmatched_errors)
                decode_errors.update(count_errors(matches.batches))
                for batch in matches.batches:
                    records += len(batch)
                    yield batch
            missing_offsets = missing_in_read.find(
                is_complete=self._limit is None or records < self._limit
            )
            self._notes = () if records else self._empty_range()
        self._finish_read(records, faults, missing_offsets, unread_texts(unread), decode_errors)

    def _empty_range(self) -> tuple[str, ...]:
        """For a search by time without matches, return a note about the time range of the logs."""
        times = self._plan.settings.record_filter
        if times is None or times.from_ms is None:
            return ()
        span = time_span(self._partition_list.files, self._plan.settings)
        return (describe_empty_range(times.from_ms, times.to_ms, span),)

    @property
    def _is_limited(self) -> bool:
        """Whether the last search ended at the limit, perhaps before the end of the logs."""
        return self._limit is not None and (self._records or 0) >= self._limit

    @property
    def facts(self) -> Sequence[str]:
        """The time range of the logs, which explains why no record is in the requested range."""
        return self._notes

    @property
    def next_command(self) -> str | None:
        """The command that verifies the data directories, if records are corrupt or lost."""
        directories = self._partition_list.data_directories
        is_damaged = False in self._faults.retriable or self._missing.lost
        if not (is_damaged and directories):
            return None
        return shlex.join(["kafka-index", "verify", "--input", *directories])

    @property
    def skipped(self) -> Sequence[tuple[str, str]]:
        """Input entries that a broker would not load: paths with reasons."""
        return skipped_texts(self._partition_list.skipped)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of records, partitions, skipped corrupt ranges, and skipped input entries."""
        return {**super().counts, "skipped": len(self._partition_list.skipped)}

    @property
    def _partitions(self) -> int:
        return len(self._partition_list.files)


_HINTS = {
    "unknown_id": " (run `kafka-index schemas` to list the missing IDs; a schemas.json maps IDs)"
}


def decode_section(errors: Mapping[str, int]) -> Section:
    """Return the section about keys and values that did not decode, with a line per error code."""
    title = f"{plural(sum(errors.values()), 'key or value', 'keys or values')} did not decode:"
    lines = [f"{code}: {count:,}{_HINTS.get(code, '')}" for code, count in errors.items()]
    return Section(title, lines, BAD)


def decode_counts(errors: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of keys and values that did not decode, keyed by name for `counts`."""
    return {f"decode_{code}": count for code, count in errors.items()}


def _ranges(count: int) -> str:
    return plural(count, "corrupt or unreadable range")
