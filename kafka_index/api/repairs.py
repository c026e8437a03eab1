"""`restore_dump`: a data directory out of dumps."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from os import PathLike

from kafka_index.commands.restore.cluster import ClusterMode
from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.output_files import Link
from kafka_index.commands.restore.plan import RestoreRequest
from kafka_index.commands.restore.point_in_time import Until
from kafka_index.commands.restore.restore_partition import restore_on
from kafka_index.commands.restore.restored_partition import Salvage
from kafka_index.commands.restore.result import RestoreResult
from kafka_index.core.arguments import (
    config_of,
    keys_of,
    naming,
    offsets_of,
    optional_path,
    paths_of,
    properties_of,
    settings_by_topic,
    texts_by_name,
    threads_of,
    whole,
    with_flags,
    wrong,
)
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, choice_of, topics_pattern
from kafka_index.core.format.names import TopicPartition, parse_partition_directory
from kafka_index.core.format.times import Time, now_ms
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics


@with_flags
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
        Metadata log directories of the controllers that are to know the topics.
    node_id : int, optional
        The broker that gets the output, where neither it nor `seeds` says.
    topic_configs : mapping of str to mapping of str to str, optional
        Settings of seeded topics, before those of the dump's metadata log.
    until : time, path, or mapping of str to mapping of int to int, optional
        Where logs end: before the first batch with a later timestamp, or that reaches the offset of
        its topic and partition, which may be in a file.
    create_time : bool
        Whether the time counts for topics with the timestamps of clients, too.
    consistent : bool
        Whether a transaction across the end of a log is kept or removed as a whole, everywhere, for
        a run of a backup.
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
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    RestoreResult
        A row per partition and lost range, and the runbook: what remains to be done. The runbook is
        None where the same call has to be made again to finish.

    Raises
    ------
    KafkaIndexError
        Something is refused or cannot be read, or the output cannot be written.

    Examples
    --------
    >>> restored = kafka_index.restore_dump("examples/dump", "restored", topics=["payments"])
    >>> restored.ok
    True
    >>> print(restored.runbook)
    WHAT WAS WRITTEN
    ...
    """
    engine = threads_of(threads)
    most = whole(max_decompressed_bytes, "max_decompressed_bytes", least=1)
    request = RestoreRequest(
        paths_of(paths),
        path_of(output, "output"),
        tiered=TieredOptions.of(tiered),
        topics=topics_pattern(topics),
        salvage=choice_of(Salvage, salvage, "salvage"),
        link=choice_of(Link, link, "link"),
        log_starts=_log_starts(log_starts),
        cluster=choice_of(ClusterMode, cluster, "cluster"),
        seeds=paths_of(seeds, "seeds"),
        node_id=None if node_id is None else whole(node_id, "node_id"),
        topic_configs=settings_by_topic(topic_configs, "topic_configs"),
        renames=texts_by_name(renames, "renames"),
        new_topic_ids=new_topic_ids,
        until=_until(until),
        goes_by_create_time=create_time,
        consistent=consistent,
        drop_keys=() if drop_keys is None else keys_of(drop_keys, "drop_keys"),
        clamp_groups=clamp_groups,
        metadata_output=optional_path(metadata_output, "metadata_output"),
        all_brokers_restored=all_brokers_restored,
        config=config_of(config),
        properties=properties_of(config),
        max_decompressed_bytes=most,
    )
    with reading_inputs(follow_links=follow_links) as unread:
        job = RestoreJob.prepare(request)
        result = job.run(restore_on(engine), lambda _: None)
    return replace(result, unread=unread_texts(unread))


def _until(given: Time | Path | Mapping[str, Mapping[int, int]] | None) -> Until:
    """Return up to where logs are restored: a time, offsets, or a file of them."""
    is_file = isinstance(given, str) and os.path.exists(given)
    if is_file or isinstance(given, PathLike | Mapping):
        return Until(offsets=offsets_of(given, "until"))
    with naming("until"):
        return Until.of(given, now_ms())


def _log_starts(given: object) -> dict[TopicPartition, int]:
    """Return log starts by partition; raises `ConfigError` for another name or offset."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise wrong("log_starts is not by partition", "such as {'orders-0': 123}", given)
    found = {}
    for name, offset in given.items():
        partition = parse_partition_directory(name) if isinstance(name, str) else None
        if partition is None:
            raise wrong("log_starts names no partition", "such as orders-0", name)
        found[partition] = whole(offset, f"log_starts[{name!r}]")
    return found
