"""Look up offsets and times: tables of queries, and questions on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.lookup.request import MEMORY_LOOKUP
from kafka_index.core.job.request import call
from kafka_index.core.log.choices import Resolve, UpperBound
from kafka_index.core.parameters import Config, Path, Paths, Table, Tiered
from kafka_index.core.query.choices import By

if TYPE_CHECKING:
    from kafka_index.commands.lookup.result import LookupResult


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
        Output of an earlier build; by default index files are next to the logs. Missing index files
        are built in memory.
    resolve : Resolve or str
        The level of the answers: the entry of the ``index``, the ``batch``, or the ``record``.
    upper_bound : UpperBound or str
        The end of a log: ``log-end``, ``high-watermark`` or ``last-stable-offset``.
    config : path, mapping or LogConfig, optional
        Kafka's settings, for indexes that are missing.
    max_decompressed_bytes : int, optional
        The most bytes of decompressed records that this process holds at a time; by default that of
        the settings.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also if they are links out of the
        input. Otherwise they are not opened, and queries that need them are unreadable.

    Returns
    -------
    LookupResult
        The columns of the queries, followed by those of answers; a row for each query, in order.
        A fault of a query or a log is its status.

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
    arguments = {**locals(), "by": By.OFFSET}
    result: LookupResult = call(MEMORY_LOOKUP, arguments)
    return result


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
    arguments = {**locals(), "by": By.TIMESTAMP}
    result: LookupResult = call(MEMORY_LOOKUP, arguments)
    return result
