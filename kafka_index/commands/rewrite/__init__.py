"""Copy a dump without some of its records."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka_index.commands.rewrite.request import REWRITE
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.job.request import call
from kafka_index.core.log.choices import Decode, DecodeErrors
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics

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
    """Copy a dump without some of its records, as ``kafka-index rewrite`` does.

    All other records keep their offsets. The input is never changed. The same call continues an
    unfinished rewrite.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    output : path
        An empty folder on a local disk, or the output of an unfinished rewrite.
    dry_run : bool
        Write nothing; only count the records to drop.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or is in the list.
    drop_keys : path, or list of str or bytes
        Drop records with these keys: a list, or a file with one key per line. A text is UTF-8, or
        other bytes after ``hex:`` or ``base64:``.
    drop_where : str
        Drop records that satisfy this condition over topic, partition, offset, timestamp, key and
        header('NAME'). With `decode`, it may compare members such as ``value.customer.id``.
    decode : Decode or str, optional
        Decode the ``key``, the ``value`` or ``both`` for the condition. Records of topics without
        the compared members are kept.
    schemas : path or str
        ``dump`` for the topic ``_schemas`` of `paths`, a folder or file of schemas, or the URL of a
        registry.
    value_schema : path, optional
        A file with the schema of values without a schema ID, such as ``orders.proto#shop.Order``.
    decode_errors : DecodeErrors or str
        ``fail`` skips a partition with a record that does not decode; ``keep`` keeps such records.
    schema_context : str
        The context of the schema IDs in the records.
    config : path, mapping or LogConfig, optional
        Kafka settings, such as a broker's ``server.properties``. Missing settings are taken from
        the metadata log.
    metadata : path, optional
        The directory of the metadata log, which shows which topics are compacted. By default, any
        topic may be compacted.
    overwrite : bool
        Write the output even if no record matches, or if every record matches.
    allow_revive : bool
        Drop the newest record of a key even if an older record of the key reappears.
    max_decompressed_bytes : int
        Memory limit for decompressed records of this process.
    threads : int, optional
        Number of partitions rewritten concurrently; by default one per core.
    follow_links : bool
        Whether to read index files, checkpoints and snapshots that are links out of the input.
        Otherwise they are not opened, and are reported as unread.

    Returns
    -------
    RewriteResult
        One row per partition. A corrupt partition is skipped and has a row.

    Raises
    ------
    InputError
        Nothing is found, a key or the condition is wrong, no record matches, every record matches,
        an older record would reappear, or the output is not empty or overlaps the input. The result
        of a dry run contains the reason instead.
    ConfigError
        Neither or both of `output` and `dry_run` are given, neither or both of `drop_keys` and
        `drop_where`, or an argument is invalid.
    PublishError
        The output cannot be created, locked or written.

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
