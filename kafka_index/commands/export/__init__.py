"""Export records to Parquet, JSON lines, Iceberg or Delta tables, incrementally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafka_index.commands.export.request import EXPORT, ExportFormat, History, OnDataLoss
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.times import Time
from kafka_index.core.job.request import call
from kafka_index.core.log.choices import Decode, DecodeErrors, Isolation
from kafka_index.core.parameters import Path, Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.export.result import ExportResult


def export_records(
    paths: Paths,
    output: Path | None = None,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    topics: Topics | None = None,
    format: ExportFormat | str = ExportFormat.PARQUET,  # noqa: A002, as the option is named
    catalog: str | None = None,
    namespace: str | None = None,
    history: History | str = History.FULL,
    offsets: Path | Mapping[str, Mapping[int, int]] | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    columns: Sequence[str] | None = None,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    by_date: bool = False,
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
    decode: Decode | str | None = None,
    schemas: Path = "dump",
    value_schema: Path | None = None,
    decode_errors: DecodeErrors | str = DecodeErrors.KEEP,
    schema_context: str = ".",
) -> ExportResult:
    """Export records to files or tables, as ``kafka-index export`` does on threads.

    Later calls with the same arguments export only new records.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    output : path, optional
        A folder for ``topic=NAME/partition=N``, a local path or URI. Only Iceberg tables have a
        default: the folder of their namespace in the warehouse of the catalog.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    indexes : path, optional
        Output of an earlier build; by default, index files are next to the logs.
    topics : str, re.Pattern or list of str, optional
        Only these topics. The regular expression must match the full name.
    format : ExportFormat or str
        ``parquet`` or ``jsonl``; or ``iceberg`` or ``delta`` for a table of each topic.
    catalog : str, optional
        The name of an Iceberg catalog in pyiceberg's configuration, or its URI.
    namespace : str, optional
        The namespace of Iceberg tables; its levels are separated by dots.
    history : History or str
        The records in a table: ``full`` for all, ``latest`` for the newest of each key.
    offsets : path, or mapping of str to mapping of int to int, optional
        The first offset of each partition: by topic and partition, or in a file.
    from_time, to_time : time, optional
        Only records whose timestamp is at or after `from_time`, and before `to_time`.
    columns : list of str
        Names of columns, as for `read_records`.
    isolation : Isolation or str
        ``read_committed`` drops the records of aborted and open transactions.
    by_date : bool
        Whether to write a folder ``date=YYYY-MM-DD`` for each day, in UTC.
    on_data_loss : OnDataLoss or str
        What to do if a log no longer matches the earlier export. ``fail`` exports nothing of the
        partition, ``continue`` continues from the last common offset, and ``restart`` exports the
        partition again.
    max_decompressed_bytes : int
        Memory limit for decompressed records, in bytes.
    threads : int, optional
        Number of parts of logs exported concurrently; by default one per core, two for remote
        inputs.
    follow_links : bool
        Whether to read index files and checkpoints that are links out of the input.
    decode : Decode or str, optional
        Decode the ``key``, the ``value`` or ``both`` to the types of their schemas. Additional
        columns have the schema, the type, and the error and bytes of rows that failed.
    schemas : path or str
        ``dump`` for the topic ``_schemas`` of `paths`, a folder or file of schemas, or the URL of a
        registry.
    value_schema : path, optional
        A file with the schema of values without a schema ID, such as ``orders.proto#shop.Order``.
    decode_errors : DecodeErrors or str
        If a key or value does not decode, ``keep`` returns its bytes, and ``fail`` raises an error.
    schema_context : str
        The context of the schema IDs in the records.

    Returns
    -------
    ExportResult
        A row per partition. A damaged partition has a row, and raises no exception.

    Raises
    ------
    InputError
        Nothing is found, the output overlaps the input or has another export, the columns cannot be
        added to a table, or the library of the format is not installed.
    PublishError
        The output cannot be created, locked or written, or the catalog cannot be reached.

    Examples
    --------
    >>> exported = kafka_index.export_records("examples/dump", "lake", topics=["payments"])
    >>> exported.ok
    True
    >>> kafka_index.export_records("examples/dump", "lake", topics=["payments"]).counts["records"]
    0
    """
    result: ExportResult = call(EXPORT, locals())
    return result
