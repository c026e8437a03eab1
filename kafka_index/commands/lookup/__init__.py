"""Look up offsets or times: the queries of a table, or a single query on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.commands.lookup.request import MEMORY_LOOKUP
from kafka_index.core.job.request import call
from kafka_index.core.log.choices import By, Resolve, UpperBound
from kafka_index.core.parameters import Config, Path, Paths, Table, Tiered

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
    """Look up offsets, as ``kafka-index lookup --by offset`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    queries : table
        Columns topic (string), partition and offset (integers); others pass through. Anything that
        exports Arrow's C stream interface (pandas, polars, DuckDB, PyArrow), or a list of dicts.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    indexes : path, optional
        The output folder of an earlier build; by default index files are next to the logs. Missing
        indexes are built in memory.
    resolve : Resolve or str
        What to find for each query: an ``index`` entry, a ``batch`` or a ``record``.
    upper_bound : UpperBound or str
        The upper bound of found offsets: ``log-end``, ``high-watermark`` or ``last-stable-offset``.
    config : path, mapping or LogConfig, optional
        Kafka settings with which missing indexes are built.
    max_decompressed_bytes : int, optional
        Memory limit for decompressed records, in bytes; by default the limit of the settings.
    follow_links : bool
        Whether to read index files, checkpoints and snapshots that are links out of the input.

    Returns
    -------
    LookupResult
        A row for each query, in order: the columns of the query, followed by the answer columns. If
        a query is malformed or a log is unreadable, the status of the row reports it.

    Raises
    ------
    ConfigError
        An argument is wrong.
    InputError
        The inputs contain no logs, or the columns of the queries are invalid: a column is missing,
        has the wrong type, or has the name of an answer column.

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
        -2 and -3 mean the log end, the log start, and the largest timestamp), a timestamp, a date,
        or text (ISO 8601, ``now``, ``today``, ``yesterday`` or ``-90m``). Times without a zone are
        UTC.

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
