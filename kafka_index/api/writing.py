"""`import_records` and `rewrite_dump`: logs out of tables of records, and out of other logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from kafka_index.commands.import_.import_manifest import ImportCounts
from kafka_index.commands.import_.import_settings import ImportMode, ImportSettings
from kafka_index.commands.import_.import_target import import_root
from kafka_index.commands.import_.layouts import ImportLayout, list_layout_files
from kafka_index.commands.import_.local_import import import_files
from kafka_index.commands.rewrite.job import RewriteJob, RewriteRequest, RewriteResult
from kafka_index.core.arguments import (
    config_of,
    keys_of,
    optional_path,
    paths_of,
    settings_of,
    text_of,
    threads_of,
    whole,
    with_flags,
)
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import ConfigError, InputError, plural
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, choice_of, topics_pattern
from kafka_index.core.format.message_bytes import uuid_bytes
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.result import Result, RunOutcome
from kafka_index.core.log.filter.condition import Condition, Selection
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics

_IMPORT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
        pa.field("segments", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("cut_bytes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class ImportedLog:
    """The log of a partition after an import: a row of `ImportResult`.

    Parameters
    ----------
    topic, partition : str, int
        The partition.
    records, first_offset : int
        How many records were imported, and the offset of the first.
    end_offset, segments, size_bytes : int
        Those of the whole log, with what was there before.
    cut_bytes : int
        Bytes of a last batch that was not written to its end, and was cut off the log that the
        import continues.
    """

    topic: str
    partition: int
    records: int
    first_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    cut_bytes: int = 0


@dataclass(frozen=True, repr=False)
class ImportResult(Result):
    """The result of `import_records`: a row per partition, as ``import --verbose`` prints them.

    Parameters
    ----------
    partitions : list of ImportedLog
        The partitions that are in their places.
    output : str
        The data directory.
    is_new : bool
        Whether this call wrote them: it does not where an earlier one has finished.
    notices : list of str
        What the files of a layout do not hold, and what has been written instead.
    """

    partitions: list[ImportedLog]
    output: str
    is_new: bool = True
    notices: list[str] = field(default_factory=list)

    command = "import"

    @property
    def headline(self) -> str:
        """The number of records and partitions, and whether an earlier call has written them."""
        counts = self.counts
        partitions = plural(counts["partitions"], "partition")
        earlier = "" if self.is_new else ", imported by an earlier run"
        return f"{plural(counts['records'], 'record')} in {partitions} in {self.output}{earlier}"

    @property
    def outcome(self) -> RunOutcome:
        """Done: an import that fails, or lacks a file, is an exception."""
        return RunOutcome.DONE

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions, and imported records."""
        return {
            "partitions": len(self.partitions),
            "records": sum(row.records for row in self.partitions),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the logs, and bytes that were cut off them."""
        cut = sum(row.cut_bytes for row in self.partitions)
        logs = sum(row.size_bytes for row in self.partitions)
        return {"logs": logs, "cut": cut} if cut else {"logs": logs}

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return pa.Table.from_pylist([asdict(row) for row in self.partitions], _IMPORT_SCHEMA)


@with_flags
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
        The data directory to write to, on a local disk, made if it is not there.
    append : bool
        Continue the logs of partitions that exist, which are refused otherwise.
    overwrite : bool
        Replace the partitions in the output, all of which an import has to have written.
    order_by : str, optional
        Without a column ``offset``: the column in whose order records get their offsets.
    layout : {"auto", "spark", "kcat", "confluent-s3", "aiven-s3"}, optional
        The export that wrote the files, instead of `export_records`.
    layout_properties : mapping of str to str, optional
        Settings of a sink connector that its files do not hold: ``value.converter`` and others.
    properties : mapping of str to str or number, optional
        Settings of the logs under Kafka's names: ``segment.bytes``, ``compression.type``,
        ``batch.size``, ``message.timestamp.type`` and others of a topic.
    topic_ids : mapping of str to str, optional
        Topic ids for the ``partition.metadata`` of new partitions, without which a broker takes
        them for stray.
    threads : int, optional
        Partitions written at a time; by default one a core.

    Returns
    -------
    ImportResult
        A row per partition.

    Raises
    ------
    InputError
        Nothing is found, a record cannot be written, a partition may not be replaced, or the output
        is not local, or overlaps the input.
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
    if append and overwrite:
        raise ConfigError("append and overwrite exclude each other")
    mode = ImportMode.APPEND if append else ImportMode.CREATE
    settings = ImportSettings.of_properties(
        settings_of({} if properties is None else properties, "properties"),
        mode=ImportMode.OVERWRITE if overwrite else mode,
        order_by=text_of(order_by, "order_by"),
        topic_ids=_topic_ids({} if topic_ids is None else topic_ids),
    )
    names, engine = paths_of(paths), threads_of(threads)
    if not names:
        raise InputError("no input given", hint="name files of records, or folders of them")
    kind = None if layout is None else choice_of(ImportLayout, layout, "layout")
    of_layout = settings_of(
        {} if layout_properties is None else layout_properties, "layout_properties"
    )
    rows: list[ImportedLog] = []

    def add(partition: TopicPartition, counts: ImportCounts) -> None:
        rows.append(ImportedLog(partition.topic, partition.partition, **asdict(counts)))

    with reading_inputs(follow_links=True):
        root = import_root(path_of(output, "output"), names)
        files, notices = list_layout_files(names, kind, of_layout)
        is_new = import_files(engine, files, root, settings, add)
    return ImportResult(rows, root, is_new, notices)


def _topic_ids(given: object) -> dict[str, str]:
    """Return topic ids by topic; raises `ConfigError` for anything else."""
    ids = settings_of(given, "topic_ids")
    for topic, topic_id in ids.items():
        try:
            uuid_bytes(topic_id)
        except ValueError as error:
            raise ConfigError(f"topic_ids[{topic!r}] is no topic id", found=topic_id) from error
    return ids


@with_flags
def rewrite_dump(
    paths: Paths,
    output: Path | None = None,
    *,
    dry_run: bool = False,
    tiered: Tiered | None = None,
    topics: Topics | None = None,
    drop_keys: Path | Collection[str | bytes] | None = None,
    drop_where: str | None = None,
    config: Config | None = None,
    metadata: Path | None = None,
    overwrite: bool = False,
    allow_revive: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
) -> RewriteResult:
    """Copy a dump without some of its records, as ``kafka-index rewrite`` does on threads.

    All other records keep their offsets. The input is never changed, and the same call continues an
    unfinished rewrite.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    output : path
        An empty folder on a local disk, or one of an unfinished rewrite.
    dry_run : bool
        Instead of an output: count what is dropped, and write nothing.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    drop_keys : path, or list of str or bytes
        The keys of records that are dropped: a list, or a file with one per line. As text they are
        UTF-8, or other bytes after ``hex:`` or ``base64:``.
    drop_where : str
        Instead of keys: a condition over topic, partition, offset, timestamp, key and
        header('NAME').
    config : path, mapping or LogConfig, optional
        Kafka's settings, such as a broker's ``server.properties``. What it does not set is taken
        from the metadata log.
    metadata : path, optional
        The directory of the metadata log, which says what topics are compacted; without it all of
        them may be.
    overwrite : bool
        Go on even if no record matches, or every record.
    allow_revive : bool
        Drop the newest record of a key even if an older one stays.
    max_decompressed_bytes : int
        The most bytes of decompressed records that this process holds at a time.
    threads : int, optional
        Partitions rewritten at a time; by default one a core.
    follow_links : bool
        Whether checkpoints, snapshots and what else is beside the logs are read also where they are
        links that lead out of the input.

    Returns
    -------
    RewriteResult
        A row per partition. A damaged partition is left out and is a row, not an exception.

    Raises
    ------
    InputError
        Nothing is found, a key or the condition is wrong, no record matches, every record matches,
        an older record would be revived, or the output is not empty or overlaps the input. What
        would be refused is a part of the result of a dry run.
    ConfigError
        There is neither an output nor `dry_run`, or both; likewise for `drop_keys` and
        `drop_where`; or an argument is wrong.
    PublishError
        The output cannot be made, locked or written.

    Examples
    --------
    >>> old = "topic = 'payments' AND offset < 10"
    >>> clean = kafka_index.rewrite_dump("examples/dump", "clean", drop_where=old)
    >>> clean.ok
    True
    >>> clean.counts["records_dropped"]
    20
    """
    target = optional_path(output, "output") or None
    # What is read from a setting that is not there must not become a dry run.
    if dry_run == (target is not None):
        raise ConfigError(
            "give either an output or dry_run=True",
            found=f"output={output!r}, dry_run={dry_run!r}",
        )
    if (drop_keys is None) == (drop_where is None):
        raise ConfigError("give either drop_keys or drop_where")
    condition = text_of(drop_where, "drop_where")
    if condition is not None:
        selection = Selection(condition=Condition.parse(condition))
    else:
        selection = Selection(keys_of(drop_keys, "drop_keys"))
    engine = threads_of(threads)
    request = RewriteRequest(
        inputs=paths_of(paths),
        output=target,
        selection=selection,
        tiered=TieredOptions.of(tiered),
        topics=topics_pattern(topics),
        config=config_of(config),
        metadata=optional_path(metadata, "metadata"),
        overwrite=overwrite,
        allow_revive=allow_revive,
        max_decompressed_bytes=whole(max_decompressed_bytes, "max_decompressed_bytes", least=1),
    )
    with reading_inputs(follow_links=follow_links) as unread:
        result = RewriteJob.prepare(request).run(engine)
    return replace(result, unread=unread_texts(unread))
