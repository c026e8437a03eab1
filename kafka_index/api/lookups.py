"""`lookup_offsets` and `lookup_timestamps`: queries in, the same rows with their answers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.commands.lookup.queries import check_columns
from kafka_index.commands.lookup.report import behind_gaps, outcome_of
from kafka_index.core.arguments import (
    config_of,
    optional_path,
    paths_of,
    table_of,
    time_of,
    with_flags,
)
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.format.config import choice_of
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.result import TableResult
from kafka_index.core.log.read.answers import Status
from kafka_index.core.log.read.choices import Resolve, UpperBound
from kafka_index.core.parameters import Config, Path, Paths, Table, Tiered
from kafka_index.core.query.inventory import collect_inventory
from kafka_index.core.query.keys import PARTITION, TOPIC, By, Keys, plain_array
from kafka_index.core.query.lookups import Lookups, LookupSettings


@dataclass(frozen=True, repr=False)
class LookupResult(TableResult):
    """The result of `lookup_offsets` and `lookup_timestamps`: a row for each query, in order.

    Parameters
    ----------
    rows : pa.Table
        The columns of the queries, followed by those of answers. What is wrong with a query or a
        log is its status.
    ended : RunOutcome
        Damage where it makes an answer unreadable, the environment where a failed read does.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    behind_gaps : int
        The number of queries for missing offsets. Their rows contain the next batch.
    """

    behind_gaps: int = 0
    command = "lookup"

    @property
    def headline(self) -> str:
        """The number of queries by status."""
        found = ", ".join(f"{count:,} {name}" for name, count in self._statuses().items())
        return f"queries: {found or 'none'}"

    @property
    def counts(self) -> Mapping[str, int]:
        """Queries by status."""
        queries = {f"queries_{name}": count for name, count in self._statuses().items()}
        behind = {"queries_behind_missing_offsets": self.behind_gaps} if self.behind_gaps else {}
        return {**queries, **behind}

    def _statuses(self) -> Counter[str]:
        found = self.rows["status"].value_counts().to_pylist()
        return Counter({row["values"]: row["counts"] for row in found})


@with_flags
def lookup_offsets(
    paths: Paths,
    queries: Table,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    resolve: Resolve | str = Resolve.BATCH,
    upper_bound: UpperBound | str = UpperBound.LOG_END,
    config: Config | None = None,
    max_decompressed_bytes: int | None = None,
    follow_links: bool = False,
) -> LookupResult:
    """Look up where offsets are, as ``kafka-index lookup --by offset`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    queries : table
        Columns topic (string), partition and offset (integers); others pass through. Anything that
        exports Arrow's C stream interface (pandas, polars, DuckDB, PyArrow), or a list of dicts.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    indexes : path, optional
        Output of an earlier build; by default index files are beside the logs. Missing index files
        are built in memory.
    resolve : Resolve or str
        How far to go: to the entry of the ``index``, the ``batch``, or the ``record``.
    upper_bound : UpperBound or str
        Where answers end: ``log-end``, ``high-watermark`` or ``last-stable-offset``.
    config : path, mapping or LogConfig, optional
        Kafka's settings, for indexes that are missing.
    max_decompressed_bytes : int, optional
        The most bytes of decompressed records that this process holds at a time; by default that of
        the settings.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    LookupResult
        The columns of the queries, followed by those of answers; a row for each query, in order.
        What is wrong with a query or a log is its status.

    Raises
    ------
    ConfigError
        A choice is not one, or an argument is wrong.
    InputError
        Nothing is found; or columns are missing, of the wrong type, or named like those of answers.

    Examples
    --------
    >>> queries = [{"topic": "payments", "partition": 0, "offset": 1000}]
    >>> found = kafka_index.lookup_offsets("examples/dump", queries)
    >>> found.to_arrow()["status"].to_pylist()
    ['found']
    """
    settings = LookupSettings(
        By.OFFSET,
        choice_of(Resolve, resolve, "resolve"),
        config_of(config, max_decompressed_bytes=max_decompressed_bytes),
    )
    return _look_up(
        paths, queries, settings, upper_bound, indexes, tiered, follow_links=follow_links
    )


@with_flags
def lookup_timestamps(
    paths: Paths,
    queries: Table,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    resolve: Resolve | str = Resolve.RECORD,
    upper_bound: UpperBound | str = UpperBound.LOG_END,
    config: Config | None = None,
    max_decompressed_bytes: int | None = None,
    follow_links: bool = False,
) -> LookupResult:
    """Look up the first records at or after timestamps, as ``lookup --by timestamp`` does.

    Parameters
    ----------
    paths, tiered, indexes, resolve, upper_bound, config, max_decompressed_bytes, follow_links
        As for `lookup_offsets`.
    queries : table
        As for `lookup_offsets`, with a column timestamp: an integer (milliseconds since 1970; -1,
        -2 and -3 ask for the end, the start, and the largest timestamp), a timestamp, a date, or a
        text: ISO 8601, ``now``, ``today``, ``yesterday`` or ``-90m``. Those without a zone are UTC.

    Returns
    -------
    LookupResult
        As from `lookup_offsets`.

    Raises
    ------
    ConfigError, InputError
        As `lookup_offsets`.

    Examples
    --------
    >>> from datetime import date
    >>> queries = [{"topic": "payments", "partition": 0, "timestamp": date(2020, 1, 1)}]
    >>> found = kafka_index.lookup_timestamps("examples/dump", queries)
    >>> found.to_arrow()["found_offset"].to_pylist()
    [0]
    """
    settings = LookupSettings(
        By.TIMESTAMP,
        choice_of(Resolve, resolve, "resolve"),
        config_of(config, max_decompressed_bytes=max_decompressed_bytes),
    )
    return _look_up(
        paths, queries, settings, upper_bound, indexes, tiered, follow_links=follow_links
    )


def _look_up(
    paths: Paths,
    queries: Table,
    settings: LookupSettings,
    upper_bound: UpperBound | str,
    indexes: Path | None,
    tiered: Tiered | None,
    *,
    follow_links: bool,
) -> LookupResult:
    by, inputs = settings.by, paths_of(paths)
    bound = choice_of(UpperBound, upper_bound, "upper_bound")
    index_root = optional_path(indexes, "indexes")
    names = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int32()), (by.column, pa.int64())])
    table = table_of(queries, "queries", names)
    asked = _with_times(table, by)
    check_columns(asked.schema, by)
    with reading_inputs(follow_links=follow_links) as unread:
        inventory = collect_inventory(
            inputs, tiered=TieredOptions.of(tiered), indexes=index_root, upper_bound=bound
        )
        with Lookups(inventory, settings) as lookups:
            found = lookups.answer_rows(asked).to_arrow()
            findings = lookups.drain_findings()
    schema = pa.schema([*table.schema, *found.schema], metadata=table.schema.metadata)
    rows = pa.table([*table.columns, *found.columns], schema=schema)
    unanswered = bool(pc.any(pc.equal(found["status"], Status.UNREADABLE.text)).as_py())
    ended = outcome_of(findings, unanswered=unanswered)
    return LookupResult(rows, ended, unread_texts(unread), behind_gaps(findings))


def _with_times(table: pa.Table, by: By) -> pa.Table:
    """Return a table with milliseconds instead of times in texts, which may be relative.

    Raises `InputError`, which names the text, for the first that is no time.
    """
    if by is not By.TIMESTAMP or table.schema.names.count(by.column) != 1:
        return table
    column = plain_array(table.column(by.column))
    types = pa.types
    if not any(
        is_text(column.type)
        for is_text in (types.is_string, types.is_large_string, types.is_string_view)
    ):
        return table
    texts = column.cast(pa.string())
    keys, now = Keys.of(texts, by), now_ms()
    values, valid = keys.values.copy(), keys.valid
    if valid is not None:
        valid = valid.copy()
        for row in np.flatnonzero(~valid & texts.is_valid().to_numpy(zero_copy_only=False)):
            values[row] = time_of(texts[int(row)].as_py(), "queries: timestamp", now=now)
            valid[row] = True
    place = table.schema.get_field_index(by.column)
    return table.set_column(place, by.column, Keys(values, valid).to_arrow())
