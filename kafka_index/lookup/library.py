"""Lookups from Python: tables of queries in, the same rows with their answers out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike

import pyarrow as pa

from kafka_index.config import LogConfig, choice_of
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.lookup.inventory import collect_inventory
from kafka_index.lookup.keys import By, Keys
from kafka_index.lookup.lookups import Lookups, LookupSettings
from kafka_index.lookup.query_columns import PARTITION, TOPIC, check_columns
from kafka_index.reading.answers import Resolve, UpperBound
from kafka_index.stores.inputs import reading_inputs
from kafka_index.tiered.options import TieredOptions


def lookup_offsets(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    queries: pa.Table,
    *,
    resolve: Resolve | str = Resolve.BATCH,
    upper_bound: UpperBound | str = UpperBound.LOG_END,
    indexes: str | PathLike[str] | None = None,
    config: LogConfig | None = None,
    tiered: TieredOptions | None = None,
    follow_links: bool = False,
) -> pa.Table:
    """Look up where offsets are, as ``kafka-index lookup --by offset`` does.

    Parameters
    ----------
    paths : path, or sequence of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    queries : pa.Table
        Columns topic (string), partition and offset (integers); others pass through.
    resolve : Resolve or str
        How far to go: to the entry of the ``index``, the ``batch``, or the ``record``.
    upper_bound : UpperBound or str
        Where answers end: ``log-end``, ``high-watermark`` or ``last-stable-offset``.
    indexes : path, optional
        Output of an earlier build; by default index files are beside the logs. Those that are
        missing are built in memory.
    config : LogConfig, optional
        Kafka's settings, for indexes that are missing.
    tiered : TieredOptions, optional
        Where remote segments are.

    Returns
    -------
    pa.Table
        The columns of the queries, followed by those of answers; a row for each query, in order.
        What is wrong with a query or a log is its status.

    Raises
    ------
    ConfigError
        A choice is not one.
    InputError
        Nothing is found; or columns are missing, of the wrong type, or named like those of answers.
    """
    settings = _settings(By.OFFSET, resolve, config)
    with reading_inputs(follow_links=follow_links):
        return _look_up(paths, queries, settings, upper_bound, indexes, tiered)


def lookup_timestamps(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    queries: pa.Table,
    *,
    resolve: Resolve | str = Resolve.RECORD,
    upper_bound: UpperBound | str = UpperBound.LOG_END,
    indexes: str | PathLike[str] | None = None,
    config: LogConfig | None = None,
    tiered: TieredOptions | None = None,
    follow_links: bool = False,
) -> pa.Table:
    """Look up the first records at or after timestamps, as ``lookup --by timestamp`` does.

    Parameters
    ----------
    paths, resolve, upper_bound, indexes, config, tiered, follow_links
        As for `lookup_offsets`.
    queries : pa.Table
        As for `lookup_offsets`, with a column timestamp: an integer (milliseconds since 1970; -1,
        -2 and -3 ask for the end, the start, and the largest timestamp), or a timestamp or date.
        Those without a zone are UTC.

    Returns
    -------
    pa.Table
        As from `lookup_offsets`.

    Raises
    ------
    InputError
        As `lookup_offsets`.
    """
    settings = _settings(By.TIMESTAMP, resolve, config)
    with reading_inputs(follow_links=follow_links):
        return _look_up(paths, queries, settings, upper_bound, indexes, tiered)


def _settings(by: By, resolve: Resolve | str, config: LogConfig | None) -> LookupSettings:
    return LookupSettings(by, choice_of(Resolve, resolve, "resolve"), config or LogConfig())


def _look_up(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    queries: pa.Table,
    settings: LookupSettings,
    upper_bound: UpperBound | str,
    indexes: str | PathLike[str] | None,
    tiered: TieredOptions | None,
) -> pa.Table:
    by = settings.by
    check_columns(queries.schema, by)
    inputs = [paths] if isinstance(paths, str | PathLike) else paths
    refuse_passwords([*inputs, indexes])
    inventory = collect_inventory(
        [os.fspath(path) for path in inputs],
        tiered=tiered,
        indexes=None if indexes is None else os.fspath(indexes),
        upper_bound=choice_of(UpperBound, upper_bound, "upper_bound"),
    )
    keys = Keys.of(queries.column(by.column), by)
    with Lookups(inventory, settings) as lookups:
        answers = lookups.answer(queries.column(TOPIC), queries.column(PARTITION), keys).to_arrow()
    schema = pa.schema([*queries.schema, *answers.schema], metadata=queries.schema.metadata)
    return pa.table([*queries.columns, *answers.columns], schema=schema)
