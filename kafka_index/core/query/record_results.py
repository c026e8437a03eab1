"""Results of records: they are read, or searched, as they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.job.result import MissingOffsets, Result, RunOutcome
from kafka_index.core.job.threads import ThreadEngine
from kafka_index.core.query.matches import Search
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.records import read_plan
from kafka_index.core.records.record_table import CORRUPT_RECORD

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

_MAX_DAMAGE = 20
_SPLITS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)


class _RecordStream(Result):
    """Records that are read as they are asked for, each time from the beginning.

    `ok`, `counts` and `damage` are about the last read that came to its end.
    """

    #: The participle of the work on the logs.
    _verb: ClassVar[str]

    def __init__(self, plan: ReadPlan, unread: Sequence[str]) -> None:
        self._plan, self._unread = plan, tuple(unread)
        self._records: int | None = None
        self._damage: list[KafkaIndexError] = []
        self._left_out = 0
        self._missing = MissingOffsets()

    @abstractmethod
    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the records."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read from the beginning, and yield the records in batches of a few MiB."""
        return self._batches()

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._plan.settings.schema

    @property
    def damage(self) -> tuple[KafkaIndexError, ...]:
        """The damage that the last read passed over, and reads that failed: the first places."""
        return tuple(self._damage)

    @property
    def unread(self) -> Sequence[str]:
        """Entries of the input that are not read, each with the reason."""
        return self._unread

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets in the logs that the last iteration read."""
        return self._missing

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the records, from the beginning, for code that asks for one."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def head(self, rows: int = 10) -> pa.Table:
        """Return the first records; no more is read than they need."""
        batches: list[pa.RecordBatch] = []
        with closing(self._batches()) as found:
            for batch in found:
                batches.append(batch.slice(0, rows))
                rows -= len(batches[-1])
                if rows <= 0:
                    break
        return pa.Table.from_batches(batches, schema=self.schema)

    def to_arrow(self) -> pa.Table:
        """Return all of the records as a table."""
        return pa.Table.from_batches(iter(self), schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the records through Arrow's C stream interface, while they are read."""
        return self.reader().__arrow_c_stream__(requested_schema)

    @property
    def headline(self) -> str:
        """The number of records, or that they were not read yet."""
        where = f"{self._plan.size_bytes:,} bytes of {plural(self._partitions, 'partition')}"
        if self._records is None:
            return f"not {self._verb} yet: {where}; head() has the first records"
        damage = self.counts["damage"]
        passed = f", {damage:,} places of damage passed over" if damage else ""
        return f"{plural(self._records, 'record')} in {where}{passed}"

    @property
    def outcome(self) -> RunOutcome:
        """Damage for what was passed over, the environment for failed reads.

        Raises `InputError` before a read has come to its end.
        """
        if self._records is None:
            raise InputError(
                f"nothing was {self._verb} to its end yet", hint="iterate to the end, or to_arrow()"
            )
        damage = [*map(is_retriable, self._damage), *[False] * bool(self._left_out)]
        places = (*self._unread, *self._missing.lost)
        return RunOutcome.of_faults(damage).with_damage(places)

    @property
    def counts(self) -> Mapping[str, int]:
        """Records, partitions, and places of damage."""
        damage = len(self._damage) + self._left_out
        return {"records": self._records or 0, "partitions": self._partitions, "damage": damage}

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of logs that are read."""
        return {"logs": self._plan.size_bytes}

    @property
    def _partitions(self) -> int:
        return len({(split.topic, split.partition) for split in self._plan.splits})

    def _shown(self) -> pa.Table:
        """Return the parts of logs, a row per partition: printing reads nothing."""
        rows = []
        for (topic, partition), own in groupby(
            self._plan.splits, lambda split: (split.topic, split.partition)
        ):
            splits = list(own)
            last = splits[-1].last_offset
            rows.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "first_offset": splits[0].first_offset,
                    "last_offset": None if last == INT64_MAX else last,
                    "size_bytes": sum(split.size_bytes for split in splits),
                }
            )
        return pa.Table.from_pylist(rows, schema=_SPLITS)

    def _rest(self, count: int) -> str:
        return f"and {plural(count, 'partition')} more"

    def _mark(self) -> str:
        return f"not {self._verb} yet" if self._records is None else super()._mark()


class Records(_RecordStream):
    """The result of `read_records`: records, sorted by topic, partition and offset.

    Iterating yields record batches of a few MiB, which are read as they are asked for; each time
    the logs are read again from the beginning. pandas, polars, DuckDB and PyArrow take it for a
    table. `ok`, `counts` and `damage` are about the last read that came to its end. It has the
    methods of a ``pyarrow.RecordBatchReader``, too: `read_next_batch` continues where the last call
    has ended, `read_all` and `read_pandas` read from the beginning.

    Parameters
    ----------
    plan : object
        The parts of the logs that are read.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    command = "cat"
    _verb = "read"

    def __init__(self, plan: ReadPlan, unread: Sequence[str] = ()) -> None:
        super().__init__(plan, unread)
        self._next: Iterator[pa.RecordBatch] | None = None

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        records = 0
        damage: list[KafkaIndexError] = []
        left_out = 0

        def pass_over(error: KafkaIndexError) -> None:
            nonlocal left_out
            if len(damage) < _MAX_DAMAGE:
                damage.append(error)
            else:
                left_out += 1

        is_marked = CORRUPT_RECORD in self.schema.names
        missing: list[MissingOffsets] = []
        for batch in read_plan(self._plan, on_left_out=pass_over, on_missing=missing.append):
            marked = len(batch) - batch.column(CORRUPT_RECORD).null_count if is_marked else 0
            records += len(batch) - marked
            left_out += marked
            yield batch
        self._records, self._damage, self._left_out = records, damage, left_out
        self._missing = MissingOffsets.joined(missing)

    def read_all(self) -> pa.Table:
        """Return all of the records as a table, as `to_arrow` does."""
        return self.to_arrow()

    def read_pandas(self) -> pd.DataFrame:
        """Return all of the records as a data frame of pandas, as `to_pandas` does."""
        return self.to_pandas()

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; raises `StopIteration` at the end."""
        if self._next is None:
            self._next = iter(self)
        return next(self._next)


class FoundRecords(_RecordStream):
    """The result of `find_records`: records that meet the conditions, read as they are asked for.

    Iterating yields record batches of a few MiB, in the order of topic, partition and offset; each
    time the dump is searched again. `ok`, `counts` and `damage` are about the last search that came
    to its end.

    Parameters
    ----------
    search : object
        The parts of the logs that are searched.
    engine : object
        The threads that search.
    limit : int or None
        The number of records after which the search ends.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    command = "find"
    _verb = "searched"

    def __init__(
        self,
        search: Search,
        engine: ThreadEngine,
        limit: int | None,
        unread: tuple[str, ...] = (),
    ) -> None:
        super().__init__(search.plan, unread)
        self._search, self._engine, self._limit = search, engine, limit

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        records = 0
        damage: list[KafkaIndexError] = []
        left_out = 0
        missing = self._search.missing()
        with closing(self._search.run(self._engine, limit=self._limit)) as found:
            for matches in found:
                damage += matches.errors
                left_out += matches.errors_left_out
                missing.add(matches.seen, matches.batches)
                for batch in matches.batches:
                    records += len(batch)
                    yield batch
        self._records, self._damage, self._left_out = records, damage, left_out
        self._missing = missing.find(is_complete=self._limit is None or records < self._limit)

    @property
    def counts(self) -> Mapping[str, int]:
        """Records found, partitions, and places of damage."""
        found = self._records or 0
        return {
            "matches": found,
            "records_found": found,
            "partitions": len(self._search.listed.files),
            "damage": super().counts["damage"],
        }

    @property
    def _partitions(self) -> int:
        return len(self._search.listed.files)
