"""Create a data directory on which a broker starts, from a dump."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kafka_index.commands.restore.request import RESTORE, ClusterMode, Link, Salvage
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.times import Time
from kafka_index.core.job.request import call
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics

if TYPE_CHECKING:
    from kafka_index.commands.restore.result import RestoreResult


def restore_dump(
    paths: Paths,
    output: Path,
    *,
    tiered: Tiered | None = None,
    topics: Topics | None = None,
    salvage: Salvage | str = Salvage.PREFIX,
    link: Link | str = Link.AUTO,
    log_starts: Mapping[str, int] | None = None,
    cluster: ClusterMode | str = ClusterMode.FRESH,
    seeds: Paths = (),
    node_id: int | None = None,
    topic_configs: Mapping[str, Mapping[str, str]] | None = None,
    until: Time | Path | Mapping[str, Mapping[int, int]] | None = None,
    create_time: bool = False,
    consistent: bool = False,
    drop_keys: Path | Collection[str | bytes] | None = None,
    clamp_groups: bool = False,
    renames: Mapping[str, str] | None = None,
    new_topic_ids: bool = False,
    metadata_output: Path | None = None,
    all_brokers_restored: bool = False,
    config: Config | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    threads: int | None = None,
    follow_links: bool = False,
) -> RestoreResult:
    """Create a data directory on which a broker starts, as ``kafka-index restore`` does.

    Parameters
    ----------
    paths : path, or list of path
        Dumps: data directories, partition directories, metadata log directories, or globs.
    output : path
        The data directory to create, on a local disk.
    tiered : URI, list of URI, or TieredOptions, optional
        The locations of remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics whose full name matches the regular expression, or whose name is listed.
    salvage : Salvage or str
        The part of a damaged segment that is kept: ``prefix``, ``batches`` or ``none``.
    link : Link or str
        How logs get into the output: ``auto``, ``reflink``, ``copy`` or ``hard``.
    log_starts : mapping of str to int, optional
        Log start offsets, keyed by partition directory name such as ``orders-0``. They replace the
        checkpointed log start offsets.
    cluster : ClusterMode or str
        Whether the output is for a ``fresh`` cluster, or for the source cluster (``same``).
    seeds : path, or list of path
        Formatted metadata log directories of the controllers to which the restored topics are
        added.
    node_id : int, optional
        The node ID of the broker that starts on the output, if neither the output nor `seeds`
        contains the ID.
    topic_configs : mapping of str to mapping of str to str, optional
        Settings of seeded topics. They take precedence over the metadata log of the dump.
    until : time, path, or mapping of str to mapping of int to int, optional
        Where the logs end. With a time, each log ends before the first batch with a later
        timestamp. With offsets by topic and partition, or the path of a file with such offsets,
        each log ends before the batch that contains the offset of its partition.
    create_time : bool
        Whether a time in `until` also applies to topics with CreateTime, whose timestamps are set
        by producers.
    consistent : bool
        For a backup: keep or remove whole transactions at the log ends, in all partitions.
    drop_keys : path, or list of str or bytes, optional
        Keys whose records are dropped, as by `rewrite_dump`: a list, or a file with a key per line.
    clamp_groups : bool
        Whether committed offsets after the end of a log are reset to that end.
    renames : mapping of str to str, optional
        New names of topics by their old names. A renamed topic gets a new ID.
    new_topic_ids : bool
        Whether topics whose ID is unknown get a new ID. By default they are rejected.
    metadata_output : path, optional
        For the source cluster: the directory to which the metadata log is copied, if it is not
        `output`.
    all_brokers_restored : bool
        For the source cluster: all of its brokers are restored to the same point in time.
    config : path, mapping or LogConfig, optional
        Kafka's settings.
    max_decompressed_bytes : int
        Maximum size of decompressed metadata and records that this process holds at a time.
    threads : int, optional
        Number of logs that are restored at a time. By default one per core, two for remote inputs.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also if they are links to files
        outside the input. Otherwise files that need them are unreadable.

    Returns
    -------
    RestoreResult
        A row per partition and lost range, and the runbook with the remaining steps. If the restore
        is not complete, the runbook is None, and the same call continues the restore.

    Raises
    ------
    KafkaIndexError
        The restore is rejected, or the output cannot be written.

    Examples
    --------
    >>> restored = kafka_index.restore_dump("examples/dump", "restored", topics=["payments"])
    >>> restored.ok
    True
    >>> print(restored.runbook)
    WHAT WAS WRITTEN
    ...
    """
    result: RestoreResult = call(RESTORE, locals())
    return result
