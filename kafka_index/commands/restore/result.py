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

    `segment_base_offset` and `path` belong to the segment that contained the records, or precedes
    them. In a compacted log, not every offset of the range had a record. The timestamps are the
    minimum and maximum in readable headers, and `records` is None if unknown. `size_bytes` is 0 if
    the dump has no bytes of the range; otherwise they begin at `position_bytes`. `is_known`: the
    records are lost. Otherwise compaction or retention may have removed them. `kept_by_batches`
    counts offsets in intact batches that ``--salvage batches`` keeps.
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
        first, last = self.first_offset, self.last_offset
        return first is not None and last is not None and last < first


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A committed offset that is after the end of a restored log, or belongs to a renamed topic.

    The end offset is None if the partition is not in the output.
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
        """Return the offset, the log end, and the reason."""
        what = f"group {self.group} committed {self.offset} of {self.topic}-{self.partition}"
        if self.status == NOT_RENAMED:
            return f"{what}, which stays under that name: {self.reason}"
        what += f", which ends at {self.end_offset}"
        if self.status == CLAMPED:
            return f"{what}: clamped to that"
        return f"{what}; not clamped: {self.reason}" if self.reason else what


@dataclass(slots=True)
class RestoredPartition:
    """The outcome of a partition.

    Parameters
    ----------
    partition : TopicPartition
        The partition.
    source : str
        Its directory in the dump.
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
        Whether missing transaction markers were written again, or their records dropped.
    lost : list of LostRange
        Offsets that are not in the output.
    clamped : list of GroupOffset
        In a partition of ``__consumer_offsets``: the offsets that were clamped.
    notes : list of str
        Further information for the user.
    unread : list of str
        Files of the dump that were not read, each with the reason.
    code, reason : str or None
        Why the partition was skipped; None if it was restored.
    retriable : bool
        It was skipped because of permission, disk, memory or network.
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
    def is_left_out(self) -> bool:
        """Whether the partition is not in the output."""
        return self.code is not None

    def leave_out(self, code: str, reason: str, *, retriable: bool = False) -> None:
        """Set why the partition is not in the output."""
        self.code, self.reason, self.retriable = code, reason, retriable


RESTORED = "restored"
SALVAGED = "salvaged"
LEFT_OUT = "left_out"
LOST = "lost"
_MEANINGS = {
    RESTORED: "no lost range",
    SALVAGED: "without damaged or missing ranges",
    LEFT_OUT: "not in the output",
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
            LEFT_OUT: Meaning(BAD, _MEANINGS[LEFT_OUT], _VERIFY),
            LOST: Meaning(
                BAD, "a range of offsets that no log contains", "kafka-index dump {path}"
            ),
            CLAMPED: Meaning(
                NOTABLE, "an offset of a group after the end of its log, set to that end"
            ),
            BEYOND_END: Meaning(
                NOTABLE, "an offset of a group after the end of its log, which stays"
            ),
            NOT_RENAMED: Meaning(
                NOTABLE, "an offset of a group under the old name of a topic, which is kept"
            ),
        },
        units="status",
        unit_values=(RESTORED, SALVAGED, LEFT_OUT),
    ),
)
_SHOWN_COLUMNS = [
    *("topic", "partition", "status", "log_start_offset", "log_end_offset", "segments", "reason")
]
_SHOWN = 20


def status_of(restored: RestoredPartition) -> str:
    """Return the status of a partition."""
    if restored.is_left_out:
        return LEFT_OUT
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
        Whether offsets after log ends were to be clamped.
    lacks_metadata : bool
        Whether the copied metadata log is damaged.
    until : str
        The requested end of logs, for people; empty if none was requested.
    of_topics : str
        The restriction to some topics, for people; empty for all of them.
    records_by_line : dict of int to int
        The number of dropped records by line of the key file, from 1; empty without keys.
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
        """Whether an offset could not be clamped as requested."""
        return self.clamps and any(one.status == BEYOND_END for one in self.beyond_end)

    @property
    def lost(self) -> list[LostRange]:
        """The lost ranges of the partitions in the output."""
        return [one for each in self.partitions if not each.is_left_out for one in each.lost]

    @property
    def headline(self) -> str:
        """The numbers of restored, lost and skipped partitions and records."""
        counts = self.counts
        partitions = plural(len(self.partitions), "partition")
        left_out = counts[f"partitions_{LEFT_OUT}"]
        if self.lost or left_out:
            what = f"{partitions} restored"
            if left_out:
                what = f"{left_out:,} of {partitions} skipped"
            text = ", ".join([*lost_texts(self.lost), what])
        else:
            of_read = " of what was read of the dump" if self.unread else ""
            until = f" up to {self.until}" if self.until else ""
            keys = " besides the records to drop" if self.records_by_line else ""
            text = f"{partitions} restored, nothing lost{of_read}{until}{self.of_topics}{keys}"
        for count, what in (
            (counts["offsets_clamped"], "clamped"),
            (counts["offsets_beyond_end"], "after the end of a log"),
            (counts["offsets_not_renamed"], "under the old name of a topic"),
        ):
            if count:
                text += f", {plural(count, 'committed offset')} {what}"
        if self.lacks_metadata:
            text += "; the metadata log is damaged: a controller truncates it, and loses the rest"
        if self.runbook is None:
            text = f"{self.output} is incomplete; run the command again to continue: {text}"
        return text

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion, notable if committed offsets are after log ends or under old names."""
        found = super().conclusion
        if not (self.beyond_end or self.not_renamed):
            return found
        return replace(found, severity=max(found.severity, NOTABLE))

    @property
    def statuses(self) -> list[Status]:
        """The partitions and the bytes of their logs by status."""
        rows = []
        for status, severity in ((RESTORED, GOOD), (SALVAGED, NOTABLE), (LEFT_OUT, BAD)):
            found = [each for each in self.partitions if status_of(each) == status]
            if found:
                sizes = sum(each.size_bytes for each in found)
                rows.append(Status(status, (len(found), sizes), severity, _MEANINGS[status]))
        return rows

    @property
    def facts(self) -> list[str]:
        """The effect of the requested end, of the keys to drop, and of hard links."""
        facts = []
        if self.until:
            limited = [each for each in self.partitions if each.is_limited]
            empty = sum(not each.size_bytes for each in limited)
            facts.append(
                f"{plural(len(limited), 'log')} of {len(self.partitions):,} truncated at "
                f"{self.until}" + (f"; {empty:,} are empty" if empty else "")
            )
        if self.records_by_line:
            facts.append(dropped_text(self.partitions))
        if self.has_hard_links:
            facts.append(
                "hard links: a broker that truncates a log also truncates the log of the dump"
            )
        return facts

    @property
    def sections(self) -> list[Section]:
        """Records by line of the keys, skipped partitions, offsets not reset, and the runbook.

        The losses come before the runbook, which is long.
        """
        left_out = [
            f"{each.partition.directory_name}: {each.reason}"
            for each in self.partitions
            if each.is_left_out
        ]
        beyond = [str(one) for one in self.beyond_end if one.status == BEYOND_END]
        runbook = [part.splitlines() for part in (self.runbook or "").rstrip().split("\n\n")]
        return [
            *key_sections(self.records_by_line),
            Section(
                f"{plural(len(left_out), 'partition')} skipped:", left_out, BAD, noun="partition"
            ),
            Section(
                f"{plural(len(beyond), 'committed offset')} not clamped:",
                beyond if self.clamps else [],
                BAD,
                noun="committed offset",
            ),
            *(
                Section(lines[0], [line[2:] for line in lines[1:]], GOOD, shows_all=True)
                for lines in runbook
                if lines
            ),
        ]

    @property
    def outcome(self) -> RunOutcome:
        """Damage if data is lost or skipped, the environment if another run may succeed."""
        faults = [each.retriable for each in self.partitions if each.is_left_out]
        faults += [False for each in self.partitions if each.lost]
        faults += [False] * (self.has_unclamped or self.lacks_metadata)
        return RunOutcome.of_faults(faults).with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions by status, lost ranges, and committed offsets by status."""
        statuses = Counter(map(status_of, self.partitions))
        beyond = sum(one.status == BEYOND_END for one in self.beyond_end)
        limited = sum(each.is_limited for each in self.partitions)
        return {
            **{f"partitions_{each}": statuses[each] for each in (RESTORED, SALVAGED, LEFT_OUT)},
            **({"partitions_cut": limited} if self.until else {}),
            **key_counts(self.records_by_line),
            "records_dropped": sum(each.dropped or 0 for each in self.partitions),
            "lost_ranges": len(self.lost),
            "offsets_clamped": len(self.beyond_end) - beyond,
            "offsets_not_renamed": len(self.not_renamed),
            "offsets_beyond_end": beyond,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the restored logs."""
        return {"logs": sum(each.size_bytes for each in self.partitions)}

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_rows(self.partitions, [*self.beyond_end, *self.not_renamed])

    def _shown(self) -> pa.Table:
        """Return the columns that fit a screen."""
        return self.to_arrow().select(_SHOWN_COLUMNS)


def lost_texts(lost: Sequence[LostRange]) -> list[str]:
    """Return texts about lost records, and about missing records that may be lost."""
    known = [one for one in lost if one.is_known]
    unknown = [one for one in lost if not one.is_known]
    texts = []
    if known:
        texts.append(f"{_amount(known)} lost in {plural(len(known), 'range')}")
    if unknown:
        texts.append(
            f"{_amount(unknown)} missing in {plural(len(unknown), 'range')}: it cannot be known "
            "whether they are lost"
        )
    return texts


def _amount(lost: Sequence[LostRange]) -> str:
    """Return the number of lost records or, if it is unknown for a range, of offsets."""
    records = sum(one.records or 0 for one in lost)
    rest = [one for one in lost if one.records is None]
    sized = [
        one.last_offset - one.first_offset + 1
        for one in rest
        if one.first_offset is not None and one.last_offset is not None
    ]
    amounts = []
    if records or not rest:
        amounts.append(plural(records, "record"))
    if sized:
        amounts.append(plural(sum(sized), "offset"))
    if len(sized) == len(rest):
        return " and ".join(amounts)
    return f"at least {' and '.join(amounts)}" if amounts else "an unknown number of records"


def dropped_text(partitions: Iterable[RestoredPartition]) -> str:
    """Return a text about the number of dropped records."""
    kept = [each for each in partitions if not each.is_left_out]
    dropped = sum(each.dropped or 0 for each in kept)
    if not dropped:
        return (
            "no record has a key of --drop-keys: check that FILE has the keys as producers wrote "
            "them"
        )
    losing = sum(bool(each.dropped) for each in kept)
    return f"{plural(dropped, 'record')} dropped by key in {plural(losing, 'partition')}"


def report_rows(
    partitions: Iterable[RestoredPartition], offsets: Iterable[GroupOffset]
) -> pa.Table:
    """Return the report: each partition with its lost ranges, then committed offsets."""
    rows: list[dict[str, object]] = []
    for each in partitions:
        rows.append(_partition_row(each))
        rows += [_lost_row(each, lost) for lost in each.lost]
    rows += map(_offset_row, offsets)
    return pa.Table.from_pylist(rows, schema=RESTORE_SCHEMA)


def _partition_row(restored: RestoredPartition) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": restored.partition.topic,
        "partition": restored.partition.partition,
        "status": status_of(restored),
        "path": restored.source,
        "topic_id": restored.topic_id or None,
        "reason_code": restored.code,
        "reason": restored.reason,
        "note": "; ".join(restored.notes) or None,
    }
    if not restored.is_left_out:
        row |= {
            "log_start_offset": restored.log_start_offset,
            "log_end_offset": restored.log_end_offset,
            "last_epoch": restored.last_epoch,
            "segments": restored.segments,
            "size_bytes": restored.size_bytes,
            "dropped": restored.dropped,
        }
    return row


def _lost_row(restored: RestoredPartition, lost: LostRange) -> dict[str, object]:
    return {
        **asdict(lost),
        **asdict(restored.partition),
        "status": LOST,
        "topic_id": restored.topic_id or None,
        "reason_code": lost.code,
    }


def _offset_row(one: GroupOffset) -> dict[str, object]:
    return {
        **asdict(one),
        "log_end_offset": one.end_offset,
        "reason": str(one),
        "committed_offset": one.offset,
    }


@dataclass(frozen=True, slots=True)
class RunbookFacts:
    """The facts of the runbook that are not in the result."""

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
    """Return the runbook as text."""
    lines = [
        *_written(result, facts),
        "",
        *_remaining(result, facts),
        "",
        *_not_restored(result, facts),
        "",
        *_one_topic(),
        "",
    ]
    return "\n".join(map(printable, lines))


def _written(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    kept = [each for each in result.partitions if not each.is_left_out]
    logs = {
        Link.COPY: "copies: the dump can be changed or removed",
        Link.REFLINK: "clones, which share blocks with the dump until one of them is written",
        Link.HARD: "HARD LINKS if rolled: a broker that truncates them also truncates the dump",
    }[facts.link]
    yield "WHAT WAS WRITTEN"
    segments = sum(each.segments for each in kept)
    yield f"  {result.output}: {len(kept)} partitions, {segments} segments"
    if facts.backup:
        yield f"  They are from {facts.backup}: it does not contain later records."
    yield f"  The logs are {logs}."
    yield "  The checksums of all logs were verified. .kafka_cleanshutdown makes the broker skip"
    yield "  log recovery. Do not change a file before the broker has started."


def _remaining(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    yield "WHAT REMAINS"
    yield "  1. Stop the brokers of the source cluster for good. Otherwise both clusters accept"
    yield "     records for the same topics."
    yield f"  2. Change the owner of the files: chown -R kafka: {result.output}"
    named = facts.identity
    if named:
        whose = f"cluster {named.get(CLUSTER_ID)}, node {named.get(NODE_ID)}"
        yield f"  3. Compare meta.properties ({whose}):"
        yield "     both IDs must match server.properties and the controllers."
    else:
        yield "  3. There is no meta.properties yet. Format the directory, which keeps its files:"
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
        yield "  5. The metadata log was copied, too. The whole cluster must be down. Restore every"
        yield "     broker to the same point in time before it starts."
    elif facts.seeds:
        yield "  5. The topics are in the bootstrap.checkpoint of these directories (.orig is the"
        yield "     file from before):"
        yield from (f"       {path}" for path in facts.seeds)
        yield "     Seed all controllers of the cluster before the first of them starts."
        yield "     This broker is the only replica of every partition. Add replicas once it runs"
        yield "     (kafka-reassign-partitions.sh). Until then, topics with min.insync.replicas"
        yield "     above 1 reject records with acks=all."
        yield "     Topics without retention.ms use log.retention.ms of the new broker, 7 days by"
        yield "     default. Older segments are deleted 30 seconds after startup. No dump contains"
        yield "     log.retention.ms of the source broker: set it in server.properties first."
    else:
        yield "  5. Before the broker starts, the metadata log must have these topics with these"
        yield "     IDs, and this broker as their leader. A partition with an unknown ID becomes"
        yield "     stray, and an empty log replaces it. kafka-topics.sh creates new IDs. For a"
        yield "     fresh cluster, restore with --seed. For the source cluster, restore with"
        yield "     --cluster same: its metadata log has the IDs."


def _not_restored(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    left_out = [each for each in result.partitions if each.is_left_out]
    salvaged = [each for each in result.partitions if each.lost and not each.is_left_out]
    yield "WHAT CANNOT BE RESTORED"
    offsets = (*result.beyond_end, *result.not_renamed)
    if not (left_out or salvaged or facts.notes or facts.groups or offsets):
        yield "  No loss was found. A loss is not detected if no log, checkpoint or batch header of"
        yield "  the dump shows it."
    yield from _first(
        [f"{each.partition.directory_name}: skipped: {each.reason}" for each in left_out],
        "more partitions, in the report",
    )
    for each in salvaged[:_SHOWN]:
        for lost in each.lost[:_SHOWN]:
            records = "how many is unknown" if lost.records is None else f"records: {lost.records}"
            last = "?" if lost.last_offset is None else lost.last_offset
            yield (
                f"  {each.partition.directory_name}: offsets {lost.first_offset} to {last} "
                f"({records}): {lost.reason}"
            )
    yield from _kept_by_batches(salvaged)
    if len(salvaged) > _SHOWN:
        yield f"  and losses of {len(salvaged) - _SHOWN} more partitions, in the report"
    for topic, groups in facts.groups.items():
        yield f"  {topic} has a new ID. These groups may lose their offsets: {', '.join(groups)}"
    yield from _renamed(result, facts)
    yield from _first(list(map(str, result.beyond_end)), "more committed offsets, in the report")
    yield from _first(facts.notes, "more notes")


def _renamed(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    """Yield how many committed offsets remain under the old name of each topic."""
    for old, new in facts.renames.items():
        groups = Counter(one.group for one in result.not_renamed if one.topic == old)
        if groups:
            shown = ", ".join(sorted(groups)[:_SHOWN])
            yield (
                f"  {old} is restored as {new}. Its committed offsets stay under the old name "
                f"(offsets: {groups.total():,}, groups: {len(groups):,}), and these groups start "
                f"in {new} by auto.offset.reset: {shown}. To set their offsets, pass the rows "
                "not_renamed of the report, with the new name, to kafka-consumer-groups.sh "
                "--reset-offsets --from-file."
            )


def _kept_by_batches(salvaged: Sequence[RestoredPartition]) -> Iterator[str]:
    """Yield how many more offsets ``--salvage batches`` would keep."""
    shown = 0
    for each in salvaged:
        kept = sum(one.kept_by_batches for one in each.lost)
        if kept and shown < _SHOWN:
            shown += 1
            yield (
                f"  {each.partition.directory_name}: --salvage batches would keep {kept:,} more "
                "offsets, from intact batches after the damage"
            )


def _first(lines: Sequence[str], rest: str) -> Iterator[str]:
    """Yield the first lines, and how many more there are."""
    yield from (f"  {line}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"  and {len(lines) - _SHOWN:,} {rest}"


def _one_topic() -> Iterator[str]:
    yield "ONE TOPIC INTO A RUNNING CLUSTER"
    yield "  Do not copy files into a running cluster: its leader truncates offsets that it does"
    yield "  not have, an empty leader truncates this replica to nothing, and the leader epochs do"
    yield "  not match. Start a separate broker on this directory instead. Copy the records with a"
    yield "  consumer and a producer, such as MirrorMaker, which assigns new offsets."
