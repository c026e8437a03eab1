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
    """Write tables of records as logs that a broker mounts, as ``kafka-index import`` does.

    Each partition appears whole or not at all. The same call continues an unfinished import.

    Parameters
    ----------
    paths : path, or list of path
        Parquet files, files of JSON lines, folders of them, or globs of either; local paths or
        URIs. They have the columns that `export_records` writes.
    output : path
        The data directory to write to, on a local disk; it is created if missing.
    append : bool
        Continue the logs of partitions that exist, which are refused otherwise.
    overwrite : bool
        Replace all partitions in the output. An earlier import must have written each of them.
    order_by : str, optional
        Without a column ``offset``: records get offsets in the order of this column.
    layout : ImportLayout or str, optional
        The tool that wrote the files, instead of `export_records`: ``auto``, ``spark``, ``kcat``,
        ``confluent-s3`` or ``aiven-s3``.
    layout_properties : mapping of str to str, optional
        Settings of a sink connector that its files do not hold: ``value.converter`` and others.
    properties : mapping of str to str or number, optional
        Settings of the logs under Kafka's names: ``segment.bytes``, ``compression.type``,
        ``batch.size``, ``message.timestamp.type`` and others of a topic.
    topic_ids : mapping of str to str, optional
        Topic ids for the ``partition.metadata`` of new partitions. A broker treats partitions
        without it as stray.
    threads : int, optional
        Partitions written at a time; by default one a core.

    Returns
    -------
    ImportResult
        A row per partition.

    Raises
    ------
    InputError
        Nothing is found, a record cannot be written, or a partition must not be replaced; or the
        output is not local, or overlaps the input.
    ConfigError
        A setting or another argument is wrong.
    PublishError
        A broker or another run holds the output, or it cannot be written.

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
