"""`find_records` and `export_records`: records that meet conditions, and records as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.api.arguments import (
    Path,
    Paths,
    Tiered,
    Topics,
    bytes_of,
    offsets_of,
    optional_path,
    path_of,
    paths_of,
    threads_of,
    time_range,
    unread_texts,
    whole,
)
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, choice_of, topics_pattern
from kafka_index.errors import ConfigError, InputError, KafkaIndexError, is_retriable
from kafka_index.execution import ThreadEngine
from kafka_index.export import (
    ExportFormat,
    ExportSettings,
    OnDataLoss,
    PartitionReport,
    with_first_times,
)
from kafka_index.export.report import outcome_of, report_table
from kafka_index.export.running import held_plan, run_plan
from kafka_index.layout.times import Time, is_relative
from kafka_index.records.record_table import DEFAULT_COLUMNS
from kafka_index.results import Result, RunOutcome
from kafka_index.storage import refuse_overlap
from kafka_index.storage.paths import absolute_path
from kafka_index.stores.inputs import reading_inputs
from kafka_index.tables import Isolation, OnDamage, ReadPlan, ReadSettings
from kafka_index.tables.matches import SEARCHED_SPLIT_BYTES, find_matches
from kafka_index.tables.records import list_partitions, plan_partitions
from kafka_index.tables.settings import RecordFilter
from kafka_index.tiered.options import TieredOptions


class FoundRecords(Result):
    """The result of `find_records`: records that meet the conditions, read as they are asked for.

    Iterating yields record batches of a few MiB, in the order of topic, partition and offset; each
    time the dump is searched again. `ok`, `counts` and `damage` are about the last search that came
    to its end.

    Parameters
    ----------
    plan : object
        The parts of the logs that are searched.
    partitions : int
        How many partitions that are.
    engine : object
        The threads that search.
    limit : int or None
        The number of records after which the search ends.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    def __init__(
        self,
        plan: ReadPlan,
        partitions: int,
        engine: ThreadEngine,
        limit: int | None,
        unread: tuple[str, ...] = (),
    ) -> None:
        self._plan, self._partitions = plan, partitions
        self._engine, self._limit = engine, limit
        self._unread = unread
        self._records: int | None = None
        self._damage: list[KafkaIndexError] = []
        self._left_out = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Search, and yield the records in batches."""
        records, self._records = 0, None
        damage: list[KafkaIndexError] = []
        left_out = 0
        with (
            self._engine.start("find") as workers,
            closing(
                find_matches(workers, self._plan.splits, self._plan.settings, limit=self._limit)
            ) as found,
        ):
            for matches in found:
                damage += matches.errors
                left_out += matches.errors_left_out
                for batch in matches.batches:
                    records += len(batch)
                    yield batch
        self._records, self._damage, self._left_out = records, damage, left_out

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the records through Arrow's C stream interface, while they are searched."""
        reader = pa.RecordBatchReader.from_batches(self._plan.settings.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    @property
    def damage(self) -> tuple[KafkaIndexError, ...]:
        """The damage that the last search passed over, and reads that failed: the first places."""
        return tuple(self._damage)

    @property
    def command(self) -> str:
        """The name of the command that does the same."""
        return "find"

    @property
    def headline(self) -> str:
        """The number of records, or that nothing was searched yet."""
        where = f"{self._plan.size_bytes:,} bytes of {self._partitions:,} partitions"
        if self._records is None:
            return f"not searched yet: {where}"
        damage = self.counts["damage"]
        passed = f", {damage:,} places of damage passed over" if damage else ""
        return f"{self._records:,} records in {where}{passed}"

    @property
    def outcome(self) -> RunOutcome:
        """Damage for what was passed over, the environment for failed reads.

        Raises `InputError` before a search has come to its end.
        """
        if self._records is None:
            raise InputError("nothing was searched yet", hint="iterate to the end, or to_arrow()")
        return RunOutcome.of_faults(map(is_retriable, self._damage)).with_damage(self._unread)

    @property
    def unread(self) -> tuple[str, ...]:
        """Entries of the input that are not read, each with the reason."""
        return self._unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Records found, partitions, and places of damage."""
        found = self._records or 0
        damage = len(self._damage) + self._left_out
        return {
            "matches": found,
            "records_found": found,
            "partitions": self._partitions,
            "damage": damage,
        }

    def to_arrow(self) -> pa.Table:
        """Search, and return all records that meet the conditions."""
        return pa.Table.from_batches(iter(self), schema=self._plan.settings.schema)

    def _shown(self) -> pa.Table:
        """Return no rows: printing searches nothing."""
        return self._plan.settings.schema.empty_table()

    def _mark(self) -> str:
        return "search" if self._records is None else super()._mark()


def find_records(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    topics: Topics | None = None,
    key: str | bytes | None = None,
    key_regex: str | None = None,
    value_contains: str | bytes | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    limit: int | None = None,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
) -> FoundRecords:
    """Find records by key, value and time, as ``kafka-index find`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    indexes : path, optional
        Output of an earlier build; by default index files are beside the logs.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    key : str or bytes, optional
        The key. As text it is UTF-8, or other bytes after ``hex:`` or ``base64:``.
    key_regex : str, optional
        An expression of RE2 that a part of the key matches.
    value_contains : str or bytes, optional
        A part of the value, likewise.
    from_time, to_time : time, optional
        Only records whose own timestamp is as late as the first, and earlier than the second.
    limit : int, optional
        Stop after so many records.
    isolation : Isolation or str
        ``read_committed`` leaves out aborted and open transactions.
    max_decompressed_bytes : int
        The most bytes of decompressed records that this process holds at a time.
    threads : int, optional
        Parts of logs searched at a time; by default one a core.
    follow_links : bool
        Whether index files and checkpoints are read also where they are links that lead out of the
        input.

    Returns
    -------
    FoundRecords
        Record batches, as they are asked for. Damage is passed over, and part of the result.

    Raises
    ------
    InputError
        Nothing is found, or a condition or a time is wrong.
    ConfigError
        There is no condition, or an argument is wrong.

    Examples
    --------
    >>> found = kafka_index.find_records("examples/dump", topics="payments", key_regex=".", limit=2)
    >>> [batch.num_rows for batch in found]
    [2]
    >>> found.ok
    True
    """
    if key is not None and key_regex is not None:
        raise ConfigError("key and key_regex exclude each other")
    if key is None and key_regex is None and value_contains is None:
        raise ConfigError("no condition: give key, key_regex or value_contains")
    from_ms, to_ms = time_range(from_time, to_time)
    settings = ReadSettings(
        isolation=choice_of(Isolation, isolation, "isolation"),
        on_damage=OnDamage.DROP,
        max_decompressed_bytes=whole(max_decompressed_bytes, "max_decompressed_bytes", least=1),
        record_filter=RecordFilter(
            from_ms,
            to_ms,
            None if key is None else bytes_of(key, "key"),
            key_regex,
            None if value_contains is None else bytes_of(value_contains, "value_contains"),
        ),
    )
    most = None if limit is None else whole(limit, "limit", least=1)
    engine = threads_of(threads)
    with reading_inputs(follow_links=follow_links) as unread:
        listed = list_partitions(
            paths_of(paths),
            topics=topics_pattern(topics),
            tiered=TieredOptions.of(tiered),
            indexes=optional_path(indexes, "indexes"),
        )
        plan = plan_partitions(
            listed.files, settings=settings, max_split_bytes=SEARCHED_SPLIT_BYTES
        )
    return FoundRecords(plan, len(listed.files), engine, most, unread_texts(unread))


@dataclass(frozen=True, repr=False)
class ExportResult(Result):
    """The result of `export_records`: a row per partition, as in ``export --report``.

    Parameters
    ----------
    partitions : list of PartitionReport
        The offsets and files of each partition, and why it is damaged or failed.
    output : str
        The folder.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    partitions: list[PartitionReport]
    output: str
    unread: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The name of the command that does the same."""
        return "export"

    @property
    def headline(self) -> str:
        """The number of records and files, and of partitions by status."""
        statuses = Counter(row.status.value for row in self.partitions)
        found = ", ".join(f"{count:,} {name}" for name, count in statuses.items())
        counts = self.counts
        return (
            f"{counts['records']:,} records in {counts['files']:,} files in {self.output}; "
            f"partitions: {found}"
        )

    @property
    def outcome(self) -> RunOutcome:
        """Damage for partitions that are damaged or failed, the environment for failed reads."""
        return outcome_of(self.partitions).with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions by status, records, and files."""
        statuses = Counter(row.status.value for row in self.partitions)
        return {
            **{f"partitions_{name}": count for name, count in statuses.items()},
            "records": sum(row.records for row in self.partitions),
            "files": sum(row.files for row in self.partitions),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the files."""
        return {"output": sum(row.size_bytes for row in self.partitions)}

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_table(self.partitions)


def export_records(
    paths: Paths,
    output: Path,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    topics: Topics | None = None,
    format: ExportFormat | str = ExportFormat.PARQUET,  # noqa: A002, as the option is named
    offsets: Path | Mapping[str, Mapping[int, int]] | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    by_date: bool = False,
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
) -> ExportResult:
    """Export records to Parquet or JSON lines, as ``kafka-index export`` does on threads.

    The same call exports what is new since the last one.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    output : path
        A folder for ``topic=NAME/partition=N``, a local path or URI.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    indexes : path, optional
        Output of an earlier build; by default index files are beside the logs.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    format : ExportFormat or str
        ``parquet`` or ``jsonl``.
    offsets : path, or mapping of str to mapping of int to int, optional
        Where to begin in each partition: by topic and partition, or a file of them.
    from_time, to_time : time, optional
        Only records whose own timestamp is as late as the first, and earlier than the second.
    columns : list of str
        Their names, as for `read_records`.
    isolation : Isolation or str
        ``read_committed`` leaves out aborted and open transactions.
    by_date : bool
        Whether there is a folder ``date=YYYY-MM-DD`` for each day, in UTC.
    on_data_loss : OnDataLoss or str
        Where a log is not the one any more that was exported: ``fail`` refuses the partition,
        ``continue`` continues where both agree, ``restart`` exports it anew.
    max_decompressed_bytes : int
        The most bytes of decompressed records that this process holds at a time.
    threads : int, optional
        Parts of logs exported at a time; by default one a core.
    follow_links : bool
        Whether index files and checkpoints are read also where they are links that lead out of the
        input.

    Returns
    -------
    ExportResult
        A row per partition. A damaged partition is a row, not an exception.

    Raises
    ------
    InputError
        Nothing is found, the output overlaps the input, or has another export.
    PublishError
        The output cannot be made, locked or written.

    Examples
    --------
    >>> exported = kafka_index.export_records("examples/dump", "lake", topics=["payments"])
    >>> exported.ok
    True
    >>> kafka_index.export_records("examples/dump", "lake", topics=["payments"]).counts["records"]
    0
    """
    names, remote = paths_of(paths), TieredOptions.of(tiered)
    index_root = optional_path(indexes, "indexes")
    given = path_of(output, "output")
    target = absolute_path(given)
    from_ms, to_ms = time_range(from_time, to_time)
    times = {"from_ms": from_time, "to_ms": to_time}
    record_filter = None if from_ms is None else RecordFilter(from_ms, to_ms)
    settings = ExportSettings(
        target,
        choice_of(ExportFormat, format, "format"),
        tuple(columns),
        by_date,
        ReadSettings(
            isolation=choice_of(Isolation, isolation, "isolation"),
            max_decompressed_bytes=whole(max_decompressed_bytes, "max_decompressed_bytes", least=1),
            record_filter=record_filter,
        ),
        relative_times={name: str(one) for name, one in times.items() if is_relative(one)},
    )
    engine = threads_of(threads)
    starts = None if offsets is None else offsets_of(offsets, "offsets")
    on_loss = choice_of(OnDataLoss, on_data_loss, "on_data_loss")
    folders = [*names, *(() if remote is None else remote.uris), *filter(None, [index_root])]
    refuse_overlap(target, given, folders)
    with reading_inputs(follow_links=follow_links) as unread:
        listed = list_partitions(
            names, topics=topics_pattern(topics), tiered=remote, indexes=index_root
        )
        settings = with_first_times(settings, listed.files)
        with held_plan(
            listed.files, settings, starting_offsets=starts, on_data_loss=on_loss
        ) as plan:
            rows = run_plan(plan, settings, engine, None)
    return ExportResult(rows, target, unread_texts(unread))
