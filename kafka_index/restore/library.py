"""Restoring from Python."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from os import PathLike

from kafka_index.config import LogConfig, choice_of, topics_pattern
from kafka_index.execution import ThreadEngine
from kafka_index.layout.times import Time, now_ms
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.restore.job import RestoreJob
from kafka_index.restore.output_files import Link
from kafka_index.restore.partition_restoring import restore_on
from kafka_index.restore.plan import RestoreRequest
from kafka_index.restore.restored_partition import RestoreResult, Salvage
from kafka_index.restore.until import Until
from kafka_index.stores.inputs import reading_inputs


def restore_dump(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    *,
    topics: str | re.Pattern[str] | None = None,
    salvage: Salvage | str = Salvage.PREFIX,
    link: Link | str = Link.AUTO,
    until: Time | Mapping[str, Mapping[int, int]] | None = None,
    create_time: bool = False,
    seeds: Sequence[str | PathLike[str]] = (),
    new_topic_ids: bool = False,
    config: LogConfig | None = None,
    threads: int | None = None,
    follow_links: bool = False,
) -> RestoreResult:
    """Make a data directory that a broker of a fresh cluster mounts, as ``kafka-index restore``.

    Parameters
    ----------
    paths : path, or sequence of path
        Dumps: data directories, partition directories, metadata log directories, or globs.
    output : path
        The data directory to make, on a local disk.
    topics : str or re.Pattern, optional
        Only topics that match it in full.
    salvage : Salvage or str
        What is kept of damaged partitions: ``prefix``, ``batches`` or ``none``.
    link : Link or str
        How logs are taken over: ``auto``, ``reflink``, ``copy`` or ``hard``.
    until : time, or mapping of str to mapping of int to int, optional
        Where logs end: before the first batch with a later timestamp, or that reaches the offset of
        its topic and partition. A time is what `read_records` takes.
    create_time : bool
        Whether the time counts for topics with the timestamps of clients, too.
    seeds : sequence of path
        Metadata log directories of the controllers that are to know the topics.
    new_topic_ids : bool
        Whether topics whose id is not known get a new one; by default they are refused.
    config : LogConfig, optional
        Kafka's settings.
    threads : int, optional
        Logs restored at a time; by default one a core.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    RestoreResult
        A row per partition, and the runbook: what remains to be done. The runbook is None where
        the same call has to be made again to finish.

    Raises
    ------
    KafkaIndexError
        Something is refused or cannot be read, or the output cannot be written.

    Notes
    -----
    `kafka_index.restore.plan.RestoreRequest` has the options that the command has beyond these.
    """
    inputs = [paths] if isinstance(paths, str | PathLike) else paths
    refuse_passwords([*inputs, output, *seeds])
    request = RestoreRequest(
        [os.fspath(path) for path in inputs],
        os.fspath(output),
        topics=topics_pattern(topics),
        salvage=choice_of(Salvage, salvage, "salvage"),
        link=choice_of(Link, link, "link"),
        until=Until.of(until, now_ms()),
        goes_by_create_time=create_time,
        seeds=[os.fspath(path) for path in seeds],
        new_topic_ids=new_topic_ids,
        config=config or LogConfig(),
    )
    with reading_inputs(follow_links=follow_links):
        job = RestoreJob.prepare(request)
    return job.run(restore_on(ThreadEngine(threads or os.cpu_count() or 1)), lambda _: None)
