"""Copy a dump without some of its records."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka_index.commands.rewrite.request import REWRITE
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics
from kafka_index.core.query.choices import Decode, DecodeErrors

if TYPE_CHECKING:
    from kafka_index.commands.rewrite.result import RewriteResult


def rewrite_dump(
    paths: Paths,
    output: Path | None = None,
    *,
    dry_run: bool = False,
    tiered: Tiered | None = None,
    topics: Topics | None = None,
    drop_keys: Path | Collection[str | bytes] | None = None,
    drop_where: str | None = None,
    decode: Decode | str | None = None,
    schemas: Path = "dump",
    value_schema: Path | None = None,
    decode_errors: DecodeErrors | str = DecodeErrors.FAIL,
    schema_context: str = ".",
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
        header('NAME'). With `decode`, also over members such as ``value.customer.id``.
    decode : Decode or str, optional
        ``key``, ``value`` or ``both``: these can be compared by their members. Each topic has its
        own types; records of topics without the members are kept.
    schemas : path or str
        ``dump`` for the topic ``_schemas`` of `paths`, a folder or file of schemas, or the URL of a
        registry.
    value_schema : path, optional
        A file with the schema of values that name none, such as ``orders.proto#shop.Order``.
    decode_errors : DecodeErrors or str
        ``fail`` skips a partition with a record that does not decode; ``keep`` keeps such records.
    schema_context : str
        The context of the schema ids in the records.
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
    result: RewriteResult = call(REWRITE, locals())
    return result
