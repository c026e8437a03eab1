"""Make a data directory that a broker mounts, from a dump."""

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
    """Make a data directory that a broker mounts, out of dumps, as ``kafka-index restore`` does.

    Parameters
    ----------
    paths : path, or list of path
        Dumps: data directories, partition directories, metadata log directories, or globs.
    output : path
        The data directory to make, on a local disk.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    salvage : Salvage or str
        What is kept of damaged partitions: ``prefix``, ``batches`` or ``none``.
    link : Link or str
        How logs are taken over: ``auto``, ``reflink``, ``copy`` or ``hard``.
    log_starts : mapping of str to int, optional
        Log starts instead of the dump's, by the names of partition directories (``orders-0``).
    cluster : ClusterMode or str
        Whether the output is for a ``fresh`` cluster, or for the ``same`` one as the dump.
    seeds : path, or list of path
        Metadata log directories of the controllers that get the topics.
    node_id : int, optional
        The broker that gets the output, where neither it nor `seeds` says.
    topic_configs : mapping of str to mapping of str to str, optional
        Settings of seeded topics, before those of the dump's metadata log.
    until : time, path, or mapping of str to mapping of int to int, optional
        Where logs end: before the first batch with a later timestamp, or that reaches the offset of
        its topic and partition. Offsets may be in a file.
    create_time : bool
        Whether the time counts for topics with the timestamps of clients, too.
    consistent : bool
        Whether a transaction across the end of a log is kept or removed as a whole, in all
        partitions; for a backup.
    drop_keys : path, or list of str or bytes, optional
        The keys of records that are dropped, as of `rewrite_dump`: a list, or a file with one per
        line.
    clamp_groups : bool
        Whether groups that committed offsets after the end of a log begin there.
    renames : mapping of str to str, optional
        Other names of topics, by the old ones; such a topic gets a new id.
    new_topic_ids : bool
        Whether topics whose id is not known get a new one; by default they are refused.
    metadata_output : path, optional
        For the same cluster: where the metadata log goes if it has a directory of its own.
    all_brokers_restored : bool
        For the same cluster: all of its brokers are restored to one point in time.
    config : path, mapping or LogConfig, optional
        Kafka's settings.
    max_decompressed_bytes : int
        The most bytes of decompressed metadata, and of records where some are dropped, that this
        process holds at a time.
    threads : int, optional
        Logs restored at a time; by default one a core, two for remote inputs.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also if they are links that lead
        out of the input. Otherwise they are not opened, and files that need them are unreadable.

    Returns
    -------
    RestoreResult
        A row per partition and lost range, and the runbook: the remaining steps. The runbook is
        None if the restore is not complete, and the same call continues it.

    Raises
    ------
    KafkaIndexError
        The restore is refused, or the output cannot be written.

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
