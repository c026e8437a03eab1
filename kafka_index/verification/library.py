"""Verifying from Python."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka_index.config import LogConfig, topics_pattern
from kafka_index.execution import ThreadEngine
from kafka_index.growing.growing_segment import system_clock
from kafka_index.layout.times import Time, parse_time
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.metadata.directory import find_cluster
from kafka_index.records.decompression import shared_budget
from kafka_index.storage.paths import index_root_of
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.stores.inputs import reading_inputs
from kafka_index.tiered.listing import list_logs
from kafka_index.tiered.options import TieredOptions
from kafka_index.verification.findings import Finding, PartitionFindings
from kafka_index.verification.run import verify_partitions
from kafka_index.verification.settings import VerifySettings, known_topics
from kafka_index.verification.starts import root_findings


@dataclass
class Verification:
    """The result of a verification of a dump.

    Parameters
    ----------
    partitions : list of PartitionFindings
        By topic and number.
    root_findings : list of Finding
        Of the files at the root of data directories.
    """

    partitions: list[PartitionFindings] = field(default_factory=list)
    root_findings: list[Finding] = field(default_factory=list)

    @property
    def is_harmful(self) -> bool:
        """Whether any file is harmful."""
        return any(one.harmful for one in self.root_findings) or any(
            one.is_harmful for one in self.partitions
        )


def verify(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    indexes: str | None = None,
    topics: str | re.Pattern[str] | None = None,
    config: LogConfig | None = None,
    tiered: TieredOptions | None = None,
    metadata: str | os.PathLike[str] | None = None,
    properties: Mapping[str, str] | None = None,
    fast: bool = False,
    threads: int | None = None,
    now_ms: Time | None = None,
    follow_links: bool = False,
) -> Verification:
    """Compare every file of a dump with the file that a build would write.

    Parameters
    ----------
    inputs : path, or sequence of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    indexes : str, optional
        Folder that mirrors the partition directories and holds the files to verify; by default
        they are beside the logs.
    topics : str or re.Pattern, optional
        Only topics that match it in full.
    config : LogConfig, optional
        Kafka's settings.
    tiered : TieredOptions, optional
        Where remote segments are.
    metadata : path, optional
        The directory of the metadata log, by default the one in the dump: it says which topics are
        compacted, and their ids.
    properties : mapping of str to str, optional
        The settings of the broker, as in its ``server.properties``: its node id and the directory
        of its metadata log are compared with the directories.
    fast : bool
        Read the headers of batches only: checksums are not verified.
    threads : int, optional
        Segments scanned at a time; by default one a core.
    now_ms : time, optional
        The time at which the broker would start, by default now: producers that are idle then do
        not count.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    Verification
        A row per file; a file that cannot be read is a row too.

    Raises
    ------
    InputError
        Nothing is found, or a path cannot be listed.
    """
    pattern = topics_pattern(topics)
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    refuse_passwords([*paths, indexes, metadata])
    with reading_inputs(follow_links=follow_links):
        listing = list_logs([os.fspath(path) for path in paths], tiered, topics=pattern)
        index_root = None if indexes is None else index_root_of(indexes)
        config = config or LogConfig()
        place = None if metadata is None else os.fspath(metadata)
        budget = shared_budget(config.max_decompressed_bytes)
        cluster = find_cluster(place, listing.data_directories, budget)
    found = Verification()
    segments = SegmentTable.of(listing.segments)
    settings = VerifySettings(
        system_clock() if now_ms is None else parse_time(now_ms),
        cluster.settings(config),
        index_root,
        fast,
        tiered=listing.tiered,
        topics=known_topics(cluster.image, segments),
    )
    with ThreadEngine(threads or os.cpu_count() or 1).start("verify") as workers:
        found.partitions += verify_partitions(workers, segments, settings)
    found.partitions.sort(key=lambda one: (one.topic, one.partition))
    found.root_findings += root_findings(listing, settings, place, properties)
    return found
