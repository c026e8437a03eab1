"""`rewrite_dump`: logs without some of their records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kafka_index.commands.rewrite.job import RewriteJob, RewriteRequest, RewriteResult
from kafka_index.core.arguments import (
    config_of,
    keys_of,
    optional_path,
    paths_of,
    text_of,
    threads_of,
    whole,
    with_flags,
)
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import ConfigError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, topics_pattern
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.log.filter.condition import Condition, Selection
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics


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
