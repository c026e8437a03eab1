"""The result of a restore: its partitions and lost ranges, its report, and the runbook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from kafka_index.commands.restore.cluster import CLUSTER_ID, NODE_ID
from kafka_index.commands.restore.request import ClusterMode, Link
from kafka_index.core.errors import plural, printable
from kafka_index.core.format.names import (
    TopicPartition,
)
from kafka_index.core.format.state_files import (
    Int32,
    Int64,
    Offset,
    Size,
)
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    Conclusion,
    Meaning,
    PageColumns,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Status,
    report_schema,
)
from kafka_index.core.log.filter.selection import key_counts, key_sections

#: Status of a committed offset: set to the log end, unchanged after the log end, or unchanged under
#: the old name of its topic.
CLAMPED = "clamped"
BEYOND_END = "beyond_end"
NOT_RENAMED = "not_renamed"
DAMAGED = "damaged"
KEYS_NOT_DROPPED = "keys_not_dropped"
NO_LOGS = "no_logs"
NOT_IN_DUMP = "not_in_dump"
STRAY = "stray"
INCONSISTENT_TOPIC_ID = "inconsistent_topic_id"
ERROR = "error"


@dataclass(frozen=True, slots=True)
class LostRange:
    """A range of offsets that is not in the output.

    In a compacted log, not every offset of the range had a record.

    Attributes
    ----------
    segment_base_offset, path : int, str
        The segment that contained the records, or the segment before the range.
    first_timestamp_ms, last_timestamp_ms : int, optional
        Minimum and maximum timestamp in readable batch headers.
    records : int, optional
        Number of lost records; None if unknown.
    size_bytes, position_bytes : int
        Size and position of the range in the log; the size is 0 if the dump lacks the bytes.
    is_known : bool
        The records are lost. If False, compaction or retention may have removed the records.
    kept_by_batches : int
        Number of offsets in intact batches that ``--salvage batches`` would keep.
    """

    segment_base_offset: Offset
    path: str
    first_offset: Int64 | None
    last_offset: Int64 | None
    code: str
    reason: str
    first_timestamp_ms: Int64 | None = None
    last_timestamp_ms: Int64 | None = None
    records: Int64 | None = None
    size_bytes: Size = 0
    position_bytes: Size | None = None
    is_known: bool = True
    kept_by_batches: Offset = 0

    @property
    def is_empty(self) -> bool:
        first_offset, last_offset = self.first_offset, self.last_offset
        return first_offset is not None and last_offset is not None and last_offset < first_offset


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A committed offset that is after the end of a restored log, or belongs to a renamed topic.

    `end_offset` is None if the partition is not in the output.
    """

    topic: str
    partition: int
    group: str
    offset: Int64
    end_offset: Offset | None
    path: str
    status: str = BEYOND_END
    reason: str = ""

    def __str__(self) -> str:
        """Return a message with the committed offset, the log end, and the reason."""
        commit = f"group {self.group} committed offset {self.offset} in {self.topic}-"
        commit += str(self.partition)
        if self.status == NOT_RENAMED:
            return f"{commit}, and the offset remains under the old topic name: {self.reason}"
        commit += f", but the log ends at {self.end_offset}"
        if self.status == CLAMPED:
            return f"{commit}: reset to the log end"
        return f"{commit}; not reset: {self.reason}" if self.reason else commit


@dataclass(slots=True)
class RestoredPartition:
    """The outcome of the restore of a partition.

    Parameters
    ----------
    partition : TopicPartition
        The partition.
    source : str
        The partition directory in the dump.
    topic_id : str
        The ID of its topic.
    base_offset, log_start_offset, log_end_offset : int
        Base offset of the first segment, log start offset and log end offset of the restored log.
    segments, size_bytes : int
        Number of segments, and size of their logs.
    last_epoch : int
        Largest leader epoch of its batches and its leader epoch checkpoint; -1 for none.
    max_producer_id : int
        Largest producer ID of its batches and snapshots; -1 for none.
    is_limited : bool
        Whether ``--until`` or the cutoff of a backup truncated the log.
    dropped : int or None
        Number of records with a dropped key; None if no keys were given.
    dropped_by_key : dict of int to int
        Number of dropped records by key, in the order of the sorted keys.
    open_producers : list of int
        Producers with an open transaction at the log end.
    is_edited : bool
        Whether missing transaction markers were written, or records of transactions without a
        marker were dropped.
    lost : list of LostRange
        Offsets that are not in the output.
    clamped : list of GroupOffset
        In a partition of ``__consumer_offsets``: the offsets that were reset to a log end.
    notes : list of str
        Further information for the user.
    unread : list of str
        Files of the dump that were not read, each with the reason.
    code, reason : str or None
        Why the partition was skipped; None if it was restored.
    retriable : bool
        Whether the partition was skipped because of a permission, disk, memory or network problem.
    """

    partition: TopicPartition
    source: str
    topic_id: str
    base_offset: Offset = 0
    log_start_offset: Offset = 0
    log_end_offset: Offset = 0
    segments: Int32 = 0
    size_bytes: Size = 0
    last_epoch: Int64 = -1
    max_producer_id: Int64 = -1
    is_limited: bool = False
    dropped: Offset | None = None
    dropped_by_key: dict[Int32, Offset] = field(default_factory=dict)
    open_producers: list[Int64] = field(default_factory=list)
    is_edited: bool = False
    lost: list[LostRange] = field(default_factory=list)
    clamped: list[GroupOffset] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    code: str | None = None
    reason: str | None = None
    retriable: bool = False

    @property
    def is_skipped(self) -> bool:
        """Whether the partition is not in the output."""
        return self.code is not None

    def skip(self, code: str, reason: str, *, retriable: bool = False) -> None:
        """Skip the partition: set the reason why it is not in the output."""
        self.code, self.reason, self.retriable = code, reason, retriable


RESTORED = "restored"
SALVAGED = "salvaged"
SKIPPED = "skipped"
LOST = "lost"
_MEANINGS = {
    RESTORED: "no lost range",
    SALVAGED: "restored except for lost ranges",
    SKIPPED: "not in the output",
}
RESTORE_SCHEMA = report_schema(
    [
        ("topic_id", pa.string()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("last_epoch", pa.int32()),
        ("segments", pa.int64()),
        ("size_bytes", pa.int64()),
        ("position_bytes", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("first_timestamp_ms", pa.int64()),
        ("last_timestamp_ms", pa.int64()),
        ("records", pa.int64()),
        ("dropped", pa.int64()),
        ("note", pa.string()),
        ("group", pa.string()),
        ("committed_offset", pa.int64()),
    ],
    required=("topic", "partition", "status", "path"),
)
_VERIFY = "kafka-index verify --input {path}"
RESTORE_REPORT = ReportSpec(
    RESTORE_SCHEMA,
    PageColumns(
        "partitions",
        ("status",),
        {
            RESTORED: Meaning(GOOD, _MEANINGS[RESTORED], _VERIFY),
            SALVAGED: Meaning(NOTABLE, _MEANINGS[SALVAGED], _VERIFY),
            SKIPPED: Meaning(BAD, _MEANINGS[SKIPPED], _VERIFY),
            LOST: Meaning(
                BAD, "a range of offsets that is not in the output", "kafka-index dump {path}"
            ),
            CLAMPED: Meaning(NOTABLE, "a committed offset after the log end, reset to the log end"),
            BEYOND_END: Meaning(NOTABLE, "a committed offset after the log end, not reset"),
            NOT_RENAMED: Meaning(
                NOTABLE, "a committed offset under the old name of a renamed topic"
            ),
        },
        units="status",
        unit_values=(RESTORED, SALVAGED, SKIPPED),
    ),
)
_SHOWN_COLUMNS = [
    *("topic", "partition", "status", "log_start_offset", "log_end_offset", "segments", "reason")
]
_MAX_LISTED = 20


def partition_status(restored: RestoredPartition) -> str:
    """Return the status of a partition."""
    if restored.is_skipped:
        return SKIPPED
    return SALVAGED if restored.lost else RESTORED


@dataclass(frozen=True, repr=False)
class RestoreResult(Result):
    """The result of a restore: a row per partition and lost range, as in ``restore --report``.

    Parameters
    ----------
    partitions : sequence of RestoredPartition
        All partitions, sorted.
    runbook : str or None
        The remaining steps; None if the restore must be run again to be complete.
    output : str
        The output directory.
    beyond_end : sequence of GroupOffset
        Committed offsets after log ends.
    not_renamed : sequence of GroupOffset
        Committed offsets of renamed topics, under the old names.
    clamps : bool
        Whether the request resets committed offsets after log ends.
    lacks_metadata : bool
        Whether the copied metadata log is damaged.
    until : str
        The requested end of logs as text; empty if none was requested.
    of_topics : str
        The selection of topics as text; empty if all topics were selected.
    records_by_line : dict of int to int
        The number of dropped records by line number in the key file, from 1; empty if no keys were
        given.
    has_hard_links : bool
        Whether logs are hard links to logs of the dump.
    next_command : str or None
        The command that predicts the start of the broker.
    skipped : tuple of (str, str)
        Entries of the input that a broker would not load, with the reason.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    partitions: Sequence[RestoredPartition]
    runbook: str | None
    output: str
    beyond_end: Sequence[GroupOffset] = ()
    not_renamed: Sequence[GroupOffset] = ()
    clamps: bool = False
    lacks_metadata: bool = False
    until: str = ""
    of_topics: str = ""
    records_by_line: Mapping[int, int] = field(default_factory=dict)
    has_hard_links: bool = False
    next_command: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()

    command = "restore"
    status_header = ("status", "partitions", "log bytes")

    @property
    def has_unclamped(self) -> bool:
        """Whether a committed offset could not be reset as requested."""
        return self.clamps and any(offset.status == BEYOND_END for offset in self.beyond_end)

    @property
    def lost(self) -> list[LostRange]:
        """The lost ranges of the partitions in the output."""
        return [
            lost_range
            for restored in self.partitions
            if not restored.is_skipped
            for lost_range in restored.lost
        ]

    @property
    def headline(self) -> str:
        """The summary line: restored and skipped partitions, lost records, committed offsets."""
        counts = self.counts
        partitions = plural(len(self.partitions), "partition")
        skipped_count = counts[f"partitions_{SKIPPED}"]
        if self.lost or skipped_count:
            outcome = f"{partitions} restored"
            if skipped_count:
                outcome = f"{skipped_count:,} of {partitions} skipped"
            text = ", ".join([*format_losses(self.lost), outcome])
        else:
            until = f" up to {self.until}" if self.until else ""
            read_scope = " in the files that could be read" if self.unread else ""
            keys = ", except the records to drop" if self.records_by_line else ""
            text = f"{partitions} restored, nothing lost{until}{self.of_topics}{read_scope}{keys}"
        for count, state in (
            (counts["offsets_clamped"], "reset to the log end"),
            (counts["offsets_beyond_end"], "after the log end"),
            (counts["offsets_not_renamed"], "under the old name of a topic"),
        ):
            if count:
                text += f", {plural(count, 'committed offset')} {state}"
        if self.lacks_metadata:
            text += "; the metadata log is damaged, and a controller truncates it at the damage"
        if self.runbook is None:
            text = f"{self.output} is incomplete; run the command again to continue: {text}"
        return text

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion; notable if committed offsets are after log ends, or of renamed topics."""
        conclusion = super().conclusion
        if not (self.beyond_end or self.not_renamed):
            return conclusion
        return replace(conclusion, severity=max(conclusion.severity, NOTABLE))

    @property
    def statuses(self) -> list[Status]:
        """The number of partitions and the size of their logs, by status."""
        rows = []
        for status, severity in ((RESTORED, GOOD), (SALVAGED, NOTABLE), (SKIPPED, BAD)):
            partitions = [
                restored for restored in self.partitions if partition_status(restored) == status
            ]
            if partitions:
                sizes = sum(restored.size_bytes for restored in partitions)
                rows.append(Status(status, (len(partitions), sizes), severity, _MEANINGS[status]))
        return rows

    @property
    def facts(self) -> list[str]:
        """Lines about truncated logs, dropped records, and hard links."""
        facts = []
        if self.until:
            truncated_partitions = [restored for restored in self.partitions if restored.is_limited]
            empty_count = sum(not restored.size_bytes for restored in truncated_partitions)
            logs = plural(len(truncated_partitions), "log")
            facts.append(
                f"{logs} of {len(self.partitions):,} truncated at {self.until}"
                + (
                    f"; {plural(empty_count, 'truncated log is', 'truncated logs are')} empty"
                    if empty_count
                    else ""
                )
            )
        if self.records_by_line:
            facts.append(format_dropped(self.partitions))
        if self.has_hard_links:
            facts.append(
                "the output has hard links: a broker that truncates a log also truncates the log "
                "of the dump"
            )
        return facts

    @property
    def sections(self) -> list[Section]:
        """Dropped records by key, skipped partitions, offsets not reset, and the runbook."""
        skip_reasons = [
            f"{restored.partition.directory_name}: {restored.reason}"
            for restored in self.partitions
            if restored.is_skipped
        ]
        not_reset = [str(offset) for offset in self.beyond_end if offset.status == BEYOND_END]
        paragraphs = [
            paragraph.splitlines() for paragraph in (self.runbook or "").rstrip().split("\n\n")
        ]
        return [
            *key_sections(self.records_by_line),
            Section(
                f"{plural(len(skip_reasons), 'partition')} skipped:",
                skip_reasons,
                BAD,
                noun="partition",
            ),
            Section(
                f"{plural(len(not_reset), 'committed offset')} not reset:",
                not_reset if self.clamps else [],
                BAD,
                noun="committed offset",
            ),
            *(
                Section(lines[0], [line[2:] for line in lines[1:]], GOOD, shows_all=True)
                for lines in paragraphs
                if lines
            ),
        ]

    @property
    def outcome(self) -> RunOutcome:
        """The outcome: damage if data is lost or skipped, unless another run may succeed."""
        faults = [restored.retriable for restored in self.partitions if restored.is_skipped]
        faults += [False for restored in self.partitions if restored.lost]
        faults += [False] * (self.has_unclamped or self.lacks_metadata)
        return RunOutcome.of_faults(faults).with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions by status, of lost ranges, and of committed offsets by status."""
        statuses = Counter(map(partition_status, self.partitions))
        not_reset = sum(offset.status == BEYOND_END for offset in self.beyond_end)
        truncated_count = sum(restored.is_limited for restored in self.partitions)
        return {
            **{
                f"partitions_{status}": statuses[status] for status in (RESTORED, SALVAGED, SKIPPED)
            },
            **({"partitions_cut": truncated_count} if self.until else {}),
            **key_counts(self.records_by_line),
            "records_dropped": sum(restored.dropped or 0 for restored in self.partitions),
            "lost_ranges": len(self.lost),
            "offsets_clamped": len(self.beyond_end) - not_reset,
            "offsets_not_renamed": len(self.not_renamed),
            "offsets_beyond_end": not_reset,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the restored logs."""
        return {"logs": sum(restored.size_bytes for restored in self.partitions)}

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_rows(self.partitions, [*self.beyond_end, *self.not_renamed])

    def _preview_rows(self) -> pa.Table:
        """Return the report with only the columns that fit a screen."""
        return self.to_arrow().select(_SHOWN_COLUMNS)


def format_losses(lost: Sequence[LostRange]) -> list[str]:
    """Return texts about lost records, and about possibly lost records."""
    known_losses = [lost_range for lost_range in lost if lost_range.is_known]
    possible_losses = [lost_range for lost_range in lost if not lost_range.is_known]
    texts = []
    if known_losses:
        texts.append(
            f"{_format_lost_amount(known_losses)} lost in {plural(len(known_losses), 'range')}"
        )
    if possible_losses:
        ranges = plural(len(possible_losses), "range")
        texts.append(f"{_format_lost_amount(possible_losses)} possibly lost in {ranges}")
    return texts


def _format_lost_amount(lost_ranges: Sequence[LostRange]) -> str:
    """Return the number of lost records, and of offsets whose number of records is unknown."""
    records = sum(lost_range.records or 0 for lost_range in lost_ranges)
    uncounted_ranges = [lost_range for lost_range in lost_ranges if lost_range.records is None]
    offset_counts = [
        lost_range.last_offset - lost_range.first_offset + 1
        for lost_range in uncounted_ranges
        if lost_range.first_offset is not None and lost_range.last_offset is not None
    ]
    amounts = []
    if records or not uncounted_ranges:
        amounts.append(plural(records, "record"))
    if offset_counts:
        amounts.append(plural(sum(offset_counts), "offset"))
    if len(offset_counts) == len(uncounted_ranges):
        return " and ".join(amounts)
    return f"at least {' and '.join(amounts)}" if amounts else "an unknown number of records"


def format_dropped(partitions: Iterable[RestoredPartition]) -> str:
    """Return a text about the number of dropped records."""
    partitions_in_output = [restored for restored in partitions if not restored.is_skipped]
    dropped_count = sum(restored.dropped or 0 for restored in partitions_in_output)
    if not dropped_count:
        return "no record has a key of --drop-keys: check the encoding of the keys in FILE"
    losing_count = sum(bool(restored.dropped) for restored in partitions_in_output)
    return (
        f"{plural(dropped_count, 'record')} dropped by key in {plural(losing_count, 'partition')}"
    )


def report_rows(
    partitions: Iterable[RestoredPartition], offsets: Iterable[GroupOffset]
) -> pa.Table:
    """Return the report: each partition with its lost ranges, then committed offsets."""
    rows: list[dict[str, object]] = []
    for restored in partitions:
        rows.append(_partition_row(restored))
        rows += [_lost_row(restored, lost) for lost in restored.lost]
    rows += map(_offset_row, offsets)
    return pa.Table.from_pylist(rows, schema=RESTORE_SCHEMA)


def _partition_row(restored: RestoredPartition) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": restored.partition.topic,
        "partition": restored.partition.partition,
        "status": partition_status(restored),
        "path": restored.source,
        "topic_id": restored.topic_id or None,
        "reason_code": restored.code,
        "reason": restored.reason,
        "note": "; ".join(restored.notes) or None,
    }
    if not restored.is_skipped:
        row |= {
            "log_start_offset": restored.log_start_offset,
            "log_end_offset": restored.log_end_offset,
            "last_epoch": restored.last_epoch,
            "segments": restored.segments,
            "size_bytes": restored.size_bytes,
            "dropped": restored.dropped,
        }
    return row


def _lost_row(restored: RestoredPartition, lost_range: LostRange) -> dict[str, object]:
    return {
        **asdict(lost_range),
        **asdict(restored.partition),
        "status": LOST,
        "topic_id": restored.topic_id or None,
        "reason_code": lost_range.code,
    }


def _offset_row(offset: GroupOffset) -> dict[str, object]:
    return {
        **asdict(offset),
        "log_end_offset": offset.end_offset,
        "reason": str(offset),
        "committed_offset": offset.offset,
    }


@dataclass(frozen=True, slots=True)
class RunbookFacts:
    """Facts in the runbook that the `RestoreResult` does not contain."""

    link: Link
    identity: Mapping[str, str]
    notes: Sequence[str]
    cluster: ClusterMode
    seeds: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    renames: Mapping[str, str]
    backup: str = ""
    metadata_directory: str | None = None


def runbook(result: RestoreResult, facts: RunbookFacts) -> str:
    """Return the text of the runbook: what was written, and the remaining steps."""
    lines = [
        *_describe_output(result, facts),
        "",
        *_list_steps(result, facts),
        "",
        *_list_losses(result, facts),
        "",
        *_describe_single_topic(),
        "",
    ]
    return "\n".join(map(printable, lines))


def _describe_output(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    partitions_in_output = [restored for restored in result.partitions if not restored.is_skipped]
    logs = {
        Link.COPY: "copies: the dump can be changed or removed",
        Link.REFLINK: "clones, which share blocks with the dump until a log is changed",
        Link.HARD: "HARD LINKS except active segments: a broker that truncates a log also "
        "truncates the dump",
    }[facts.link]
    yield "WHAT WAS WRITTEN"
    segments = plural(sum(restored.segments for restored in partitions_in_output), "segment")
    partitions = plural(len(partitions_in_output), "partition")
    yield f"  {result.output}: {partitions}, {segments}"
    if facts.backup:
        yield f"  The logs are from {facts.backup}. Later records are not in the backup."
    yield f"  The logs are {logs}."
    yield "  The checksums of all logs were verified. .kafka_cleanshutdown makes the broker skip"
    yield "  log recovery. Do not change a file before the broker has started."


def _list_steps(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    yield "WHAT REMAINS"
    yield "  1. Stop the brokers of the source cluster for good. Otherwise both clusters accept"
    yield "     records for the same topics."
    yield f"  2. Change the owner of the files: chown -R kafka: {result.output}"
    properties = facts.identity
    if properties:
        identity = f"cluster {properties.get(CLUSTER_ID)}, node {properties.get(NODE_ID)}"
        yield f"  3. Compare meta.properties ({identity}):"
        yield "     both IDs must match server.properties and the controllers."
    else:
        yield "  3. The output has no meta.properties. Format the directory (its files are kept):"
        yield "       kafka-storage.sh format -t CLUSTER_ID -c server.properties"
    yield f"  4. Set log.dirs={result.output} in server.properties."
    if facts.metadata_directory is not None and facts.cluster is ClusterMode.SAME:
        yield f"     Set metadata.log.dir={facts.metadata_directory}, which has the metadata log."
    yield from _cluster_steps(facts)
    yield "  6. Predict the start of the broker:"
    metadata = facts.metadata_directory or "METADATA_DIR"
    yield f"       kafka-index predict --input {result.output} --metadata {metadata}"
    if result.counts["lost_ranges"]:
        yield "     Lost records change the verdict. To accept the losses of this restore, add"
        yield "     --known-losses with the file that --report wrote."
    if facts.metadata_directory is None:
        yield "     METADATA_DIR is the metadata.log.dir of a controller of the cluster."


def _cluster_steps(facts: RunbookFacts) -> Iterator[str]:
    if facts.cluster is ClusterMode.SAME:
        yield "  5. The metadata log was copied, too. All brokers of the cluster must be stopped."
        yield "     Restore every broker to the same point in time before a broker starts."
    elif facts.seeds:
        yield "  5. The topics are in the bootstrap.checkpoint of these directories (.orig is the"
        yield "     original file):"
        yield from (f"       {path}" for path in facts.seeds)
        yield "     Seed all controllers of the cluster before the first controller starts."
        yield "     This broker is the only replica of every partition. Add replicas after the"
        yield "     start (kafka-reassign-partitions.sh). Until then, topics with"
        yield "     min.insync.replicas above 1 reject records with acks=all."
        yield "     Topics without retention.ms use log.retention.ms of the new broker, 7 days by"
        yield "     default. Older segments are deleted 30 seconds after startup. No dump contains"
        yield "     log.retention.ms of the source broker: set it in server.properties first."
    else:
        yield "  5. Before the broker starts, the metadata log must have these topics with these"
        yield "     IDs, and this broker as their leader. A partition with an unknown ID becomes"
        yield "     stray, and an empty log replaces it. kafka-topics.sh creates new IDs. For a"
        yield "     fresh cluster, restore with --seed. For the source cluster, restore with"
        yield "     --cluster same, which copies the metadata log with these IDs."


def _list_losses(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    skipped_partitions = [restored for restored in result.partitions if restored.is_skipped]
    salvaged_partitions = [
        restored for restored in result.partitions if restored.lost and not restored.is_skipped
    ]
    yield "WHAT CANNOT BE RESTORED"
    offsets = (*result.beyond_end, *result.not_renamed)
    if not (skipped_partitions or salvaged_partitions or facts.notes or facts.groups or offsets):
        yield "  No loss was found. A loss is not detected if no log, checkpoint or batch header of"
        yield "  the dump shows the loss."
    yield from _first_lines(
        [
            f"{restored.partition.directory_name}: skipped: {restored.reason}"
            for restored in skipped_partitions
        ],
        "more partitions, in the report",
    )
    for restored in salvaged_partitions[:_MAX_LISTED]:
        for lost in restored.lost[:_MAX_LISTED]:
            records = (
                "unknown number of records" if lost.records is None else f"records: {lost.records}"
            )
            last_offset = "?" if lost.last_offset is None else lost.last_offset
            yield (
                f"  {restored.partition.directory_name}: offsets {lost.first_offset} to "
                f"{last_offset} ({records}): {lost.reason}"
            )
    yield from _suggest_salvage_batches(salvaged_partitions)
    if len(salvaged_partitions) > _MAX_LISTED:
        more_count = len(salvaged_partitions) - _MAX_LISTED
        yield f"  and losses of {plural(more_count, 'more partition')}, in the report"
    for topic, groups in facts.groups.items():
        yield f"  {topic} has a new ID. These groups may lose their offsets: {', '.join(groups)}"
    yield from _list_renamed_offsets(result, facts)
    yield from _first_lines(
        list(map(str, result.beyond_end)), "more committed offsets, in the report"
    )
    yield from _first_lines(facts.notes, "more notes")


def _list_renamed_offsets(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    """Yield lines with the number of committed offsets under each old topic name."""
    for old_name, new_name in facts.renames.items():
        groups = Counter(offset.group for offset in result.not_renamed if offset.topic == old_name)
        if groups:
            names = ", ".join(sorted(groups)[:_MAX_LISTED])
            yield (
                f"  {old_name} is restored as {new_name}. Committed offsets remain under the old "
                f"name (offsets: {groups.total():,}, groups: {len(groups):,}). These groups start "
                f"in {new_name} by auto.offset.reset: {names}. To set the offsets of the groups, "
                "pass the not_renamed rows of the report, with the new name, to "
                "kafka-consumer-groups.sh --reset-offsets --from-file."
            )


def _suggest_salvage_batches(salvaged_partitions: Sequence[RestoredPartition]) -> Iterator[str]:
    """Yield a line with the number of offsets that ``--salvage batches`` would also keep."""
    listed_count = 0
    for restored in salvaged_partitions:
        kept_offsets = sum(lost_range.kept_by_batches for lost_range in restored.lost)
        if kept_offsets and listed_count < _MAX_LISTED:
            listed_count += 1
            yield (
                f"  {restored.partition.directory_name}: --salvage batches would keep "
                f"{plural(kept_offsets, 'more offset')}, from intact batches after the damage"
            )


def _first_lines(lines: Sequence[str], remainder: str) -> Iterator[str]:
    """Yield the first lines, and a line with the number of further lines."""
    yield from (f"  {line}" for line in lines[:_MAX_LISTED])
    if len(lines) > _MAX_LISTED:
        yield f"  and {len(lines) - _MAX_LISTED:,} {remainder}"


def _describe_single_topic() -> Iterator[str]:
    yield "ONE TOPIC INTO A RUNNING CLUSTER"
    yield "  Do not copy files into a running cluster. The leader epochs do not match, and the"
    yield "  leader makes this replica truncate all offsets that the leader does not have."
    yield "  Start a separate broker on this directory instead. Copy the records with a"
    yield "  consumer and a producer, such as MirrorMaker, which assigns new offsets."
