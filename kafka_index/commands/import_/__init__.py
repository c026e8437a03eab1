"""Import tables of records as logs of Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka_index.commands.import_.request import IMPORT, ImportLayout
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Path, Paths

if TYPE_CHECKING:
    from kafka_index.commands.import_.result import ImportResult


def import_records(
    paths: Paths,
    output: Path,
    *,
    append: bool = False,
    overwrite: bool = False,
    order_by: str | None = None,
    layout: ImportLayout | str | None = None,
    layout_properties: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
    topic_ids: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> ImportResult:
    """Write tables of records as logs that a broker can load, as ``kafka-index import`` does.

    Each partition is written atomically. The same call continues an unfinished import.

    Parameters
    ----------
    paths : path, or list of path
        Parquet files, files of JSON lines, folders of them, or globs of either; local paths or
        URIs. Their columns are the columns that `export_records` writes.
    output : path
        The data directory to write to, on a local disk. It is created if missing.
    append : bool
        Append to the logs of existing partitions. By default, existing partitions are rejected.
    overwrite : bool
        Replace all partitions in the output. Each of them must be from an earlier import.
    order_by : str, optional
        If the input has no column ``offset``, assign offsets in the order of this column.
    layout : ImportLayout or str, optional
        The tool that wrote the files, instead of `export_records`: ``auto``, ``spark``, ``kcat``,
        ``confluent-s3`` or ``aiven-s3``.
    layout_properties : mapping of str to str, optional
        Settings of a sink connector that its files do not contain, such as ``value.converter``.
    properties : mapping of str to str or number, optional
        Kafka settings of the topics, such as ``segment.bytes``, ``compression.type``,
        ``batch.size`` and ``message.timestamp.type``.
    topic_ids : mapping of str to str, optional
        Topic IDs for the ``partition.metadata`` of new partitions. A broker treats partitions
        without an ID as stray.
    threads : int, optional
        Number of partitions written concurrently; by default one per core.

    Returns
    -------
    ImportResult
        One row per partition.

    Raises
    ------
    InputError
        Nothing is found, a record cannot be written, a partition must not be replaced, the output
        is not local, or it overlaps the input.
    ConfigError
        An argument is invalid.
    PublishError
        A broker or another run has locked the output, or it cannot be written.

    Examples
    --------
    >>> exported = kafka_index.export_records("examples/dump", "lake", topics=["payments"])
    >>> logs = kafka_index.import_records("lake", "logs", properties={"compression.type": "zstd"})
    >>> logs.ok
    True
    >>> logs.counts["records"] == exported.counts["records"]
    True
    """
    result: ImportResult = call(IMPORT, locals())
    return result
