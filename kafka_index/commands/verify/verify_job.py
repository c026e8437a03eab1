"""A verification, from a request to findings: list the dump, read its cluster, verify."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.commands.verify.copies import CopySegments, compare_partitions
from kafka_index.commands.verify.findings import (
    FileKind,
    Finding,
    PartitionFindings,
    findings_table,
)
from kafka_index.commands.verify.partition import verify_partitions
from kafka_index.commands.verify.root_files import metadata_finding, root_findings
from kafka_index.commands.verify.verify_settings import KnownTopic, VerifySettings, known_topics
from kafka_index.core.cluster.listing import list_logs
from kafka_index.core.cluster.metadata.directory import FoundCluster, find_cluster
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.fs.paths import index_root_of
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import Result, RunOutcome
from kafka_index.core.log.append.log_segment_writer import system_clock
from kafka_index.core.log.missing_offsets import Cleaning
from kafka_index.core.logdir.data_directory import DataDirectories
from kafka_index.core.logdir.listing import Listing, list_dump
from kafka_index.core.logdir.segment_table import PartitionSegments, SegmentTable
from kafka_index.core.records.decompression import shared_budget

if TYPE_CHECKING:
    from kafka_index.core.cluster.remote.options import TieredOptions


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A verification as it was asked for, checked except against the disk.

    With `against`, the batches of two copies are compared, and no file is verified. `properties`
    are the settings of the broker, which are compared with its directories; `now_ms` is the time at
    which it would start, by default the clock's.
    """

    inputs: Sequence[str]
    tiered: TieredOptions | None = None
    indexes: str | None = None
    metadata: str | None = None
    against: Sequence[str] = ()
    topics: re.Pattern[str] | None = None
    fast: bool = False
    config: LogConfig = field(default_factory=LogConfig)
    properties: Mapping[str, str] | None = None
    now_ms: int | None = None


class VerifyListener(Listener, Protocol):
    """Follows a verification, and gets its findings; called by one thread at a time."""

    def on_findings(self, findings: Sequence[Finding]) -> None:
        """Add the findings of files at the root, or of a comparison."""

    def on_partition(self, found: PartitionFindings) -> None:
        """Add the findings of a partition."""


@dataclass(slots=True)
class VerifyJob:
    """A verification of what was listed; `skipped` grows by what a comparison lists.

    `metadata_damage` is the first damage of the metadata log that was given.
    """

    request: VerifyRequest
    listing: Listing
    segments: SegmentTable
    cluster: FoundCluster
    skipped: Sequence[Skipped]
    metadata_damage: KafkaIndexError | None = None

    @classmethod
    def prepare(cls, request: VerifyRequest) -> VerifyJob:
        """List the dump, and read its cluster."""
        listing = list_logs(request.inputs, request.tiered, topics=request.topics)
        budget = shared_budget(request.config.max_decompressed_bytes)
        damage: KafkaIndexError | None = None
        try:
            cluster = find_cluster(request.metadata, listing.data_directories, budget)
        except InputError as error:
            cause = error.__cause__
            if not isinstance(cause, KafkaIndexError) or is_retriable(cause):
                raise
            cluster, damage = FoundCluster(fault=str(cause)), cause
        segments = SegmentTable.of(listing.segments)
        return cls(request, listing, segments, cluster, listing.skipped, damage)

    def run(self, engine: Engine, listener: VerifyListener) -> None:
        """Verify, or compare; the listener gets what is found."""
        (self._compare if self.request.against else self._verify)(engine, listener)

    def _verify(self, engine: Engine, listener: VerifyListener) -> None:
        request, segments = self.request, self.segments
        settings = VerifySettings(
            system_clock() if request.now_ms is None else request.now_ms,
            self.cluster.settings(request.config),
            None if request.indexes is None else index_root_of(request.indexes),
            request.fast,
            tiered=self.listing.tiered,
            topics=known_topics(self.cluster, segments, request.properties),
        )
        rows = list(root_findings(self.listing, settings, request.metadata, request.properties))
        if self.metadata_damage is not None:
            rows.append(metadata_finding(request.metadata or "", self.metadata_damage))
        listener.on_findings(rows)
        with engine.start(
            "verify",
            after_failure="the report has what was verified: run again",
            listener=listener,
            works=len(segments.partitions),
            inputs=[each.directory for each in segments.partitions],
        ) as workers:
            for found in verify_partitions(workers, segments, settings):
                listener.on_partition(found)

    def _compare(self, engine: Engine, listener: VerifyListener) -> None:
        against = list_dump(self.request.against, topics=self.request.topics)
        self.skipped = [*self.listing.skipped, *against.skipped]
        topics = known_topics(self.cluster, self.segments, self.request.properties)
        ours, theirs = (_by_partition(each, topics) for each in (self.listing, against))
        empty = CopySegments(())
        pairs = [
            (ours.get(each, empty), theirs.get(each, empty)) for each in sorted({*ours, *theirs})
        ]
        with engine.start("verify", after_failure="run again", listener=listener) as workers:
            for row in compare_partitions(workers, pairs):
                listener.on_findings([row])


def _by_partition(
    listing: Listing, topics: Mapping[str, KnownTopic]
) -> dict[TopicPartition, CopySegments]:
    roots = DataDirectories(tolerated=True)

    def cleaning(each: PartitionSegments) -> Cleaning:
        topic = topics.get(each.partition.topic)
        policy = None if topic is None else topic.cleanup_policy
        checkpoint = roots.of(each.directory).cleaned_to(each.partition)
        known = topic is not None
        return Cleaning.of(each.partition.topic, checkpoint, policy, is_topic_known=known)

    return {
        each.partition: CopySegments(each.files(), cleaning(each))
        for each in SegmentTable.of(listing.segments).partitions
    }


class VerifyTally:
    """Counts the rows of a verification: files, and harmful ones, by class; and partitions."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.harmful: Counter[str] = Counter()
        self.retriable = 0
        self.is_comparison = False
        self._partitions = self._harmful_partitions = 0

    def add(self, rows: pa.Table) -> pa.Table:
        """Count rows; return those of files, or of compared partitions."""
        is_partition = pc.equal(rows["kind"], FileKind.PARTITION.value)
        partitions, files = rows.filter(is_partition), rows.filter(pc.invert(is_partition))
        self.is_comparison |= FileKind.COPY.value in files["kind"].to_pylist()
        self._partitions += partitions.num_rows
        self._harmful_partitions += pc.sum(partitions["harmful"]).as_py() or 0
        retriable = (pc.sum(each["retriable"]).as_py() for each in (files, rows))
        self.retriable += next(filter(None, retriable), 0)
        for row in (
            files.group_by("class")
            .aggregate([("harmful", "count"), ("harmful", "sum")])
            .to_pylist()
        ):
            self.files[row["class"]] += row["harmful_count"]
            self.harmful[row["class"]] += row["harmful_sum"]
        return files

    @property
    def partitions(self) -> int:
        """The partitions that were verified or compared."""
        return self.files.total() if self.is_comparison else self._partitions

    @property
    def harmful_partitions(self) -> int:
        """The partitions among them with harmful files or differences."""
        return self.harmful.total() if self.is_comparison else self._harmful_partitions

    @property
    def counts(self) -> dict[str, int]:
        """The counts under their names in ``--summary``."""
        return {
            **{f"files_{name}": count for name, count in self.files.items()},
            "files_harmful": self.harmful.total(),
            "partitions": self.partitions,
            "partitions_harmful": self.harmful_partitions,
        }

    @property
    def is_harmful(self) -> bool:
        """Whether any row is harmful."""
        return bool(self.harmful.total() or self.harmful_partitions)

    def outcome(self, unread: Sized) -> RunOutcome:
        """Return the outcome: damage for harmful rows and entries of the input that were not read.

        It is the environment for what may be read later.
        """
        faults = [True] * bool(self.retriable)
        faults += [False] * bool(self.is_harmful or unread)
        return RunOutcome.of_faults(faults)

    def headline(self, unread: Sized) -> str:
        """Return the verdict in one line, with the number of partitions or files that it covers."""
        where = f"in {plural(self.partitions, 'partition')}" if self.partitions else ""
        if self.is_comparison and self.is_harmful:
            text = f"{plural(self.harmful.total(), 'partition')} with harmful differences"
            where = f"among {self.partitions:,}"
        elif self.is_harmful:
            text = plural(self.harmful.total(), "harmful file")
            where = ""
            if self.harmful_partitions:
                where = f"in {self.harmful_partitions:,} of {plural(self.partitions, 'partition')}"
        elif self.retriable or unread:
            text = "verification is incomplete"
        else:
            what = "no harmful difference" if self.is_comparison else "nothing harmful"
            text = f"{what} was found"
        parts = [f"{text} {where}".rstrip()]
        if self.retriable:
            parts.append(f"{self.retriable:,} could not be read")
        if unread:
            parts.append(f"{plural(len(unread), 'entry', 'entries')} of the input not read")
        return ", ".join(parts)


@dataclass(repr=False)
class Verification(Result):
    """The result of `verify`: a row per file and partition, as in ``verify --report``.

    Parameters
    ----------
    partitions : list of PartitionFindings
        By topic and number.
    root_findings : list of Finding
        Of the files at the root of data directories; or of two copies, a row per partition.
    log_bytes : int
        Bytes of the logs that were verified.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    partitions: list[PartitionFindings] = field(default_factory=list)
    root_findings: list[Finding] = field(default_factory=list)
    log_bytes: int = 0
    unread: tuple[str, ...] = ()

    @property
    def is_harmful(self) -> bool:
        """Whether any file is harmful."""
        return any(one.harmful for one in self.root_findings) or any(
            one.is_harmful for one in self.partitions
        )

    command = "verify"

    @property
    def headline(self) -> str:
        """The verdict, in one line."""
        return self._tally().headline(self.unread)

    @property
    def outcome(self) -> RunOutcome:
        """The outcome, which decides the exit code of the command."""
        return self._tally().outcome(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Files by class, harmful files, partitions and harmful partitions."""
        return self._tally().counts

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the logs."""
        return {"logs": self.log_bytes}

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report: the root's files, then the partitions'."""
        return findings_table(
            [*self.root_findings, *(row for one in self.partitions for row in one.findings)]
        )

    def _tally(self) -> VerifyTally:
        tally = VerifyTally()
        tally.add(self.to_arrow())
        return tally

    def _shown(self) -> pa.Table:
        """Return the harmful rows, or all of them where none is."""
        rows = self.to_arrow()
        harmful = rows.filter(rows["harmful"])
        shown = harmful if harmful.num_rows else rows
        return shown.select(["path", "kind", "class", "position_bytes", "found", "effect"])
