"""The result of a restore and its runbook: its rows, the losses, and the remaining steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from kafka_index.commands.restore.cluster import CLUSTER_ID, NODE_ID, ClusterMode, Identity
from kafka_index.commands.restore.output_files import Link
from kafka_index.commands.restore.restored_partition import (
    BEYOND_END,
    GroupOffset,
    LostRange,
    RestoredPartition,
)
from kafka_index.core.errors import plural, printable
from kafka_index.core.job.result import Result, RunOutcome, report_schema

RESTORED = "restored"
SALVAGED = "salvaged"
LEFT_OUT = "left_out"
LOST = "lost"

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
        All of them, sorted.
    runbook : str or None
        What remains to be done; None where the restore has to be run again to be complete.
    output : str
        The output directory.
    beyond_end : sequence of GroupOffset
        Offsets that groups committed after the ends of logs.
    not_renamed : sequence of GroupOffset
        Offsets that groups committed of topics under their old names.
    clamps : bool
        Whether they were to be clamped.
    lacks_metadata : bool
        Whether the metadata log that was copied is damaged.
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
    unread: tuple[str, ...] = ()

    @property
    def has_unclamped(self) -> bool:
        """Whether an offset that was to be clamped is not."""
        return self.clamps and any(one.status == BEYOND_END for one in self.beyond_end)

    command = "restore"

    @property
    def headline(self) -> str:
        """The number of partitions by status, and of lost ranges."""
        counts = Counter(map(status_of, self.partitions))
        found = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        lost = self.counts["lost_ranges"]
        text = f"partitions: {found or 'none'}" + (f"; {lost:,} ranges lost" if lost else "")
        return text if self.runbook is not None else f"{text}; not complete: run again to continue"

    @property
    def outcome(self) -> RunOutcome:
        """Damage for what is lost or left out, the environment where another run may finish."""
        faults = [each.retriable for each in self.partitions if each.is_left_out]
        faults += [False for each in self.partitions if each.lost]
        faults += [False] * (self.has_unclamped or self.lacks_metadata)
        return RunOutcome.of_faults(faults).with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions by status, lost ranges, and offsets of groups."""
        statuses = Counter(map(status_of, self.partitions))
        beyond = sum(one.status == BEYOND_END for one in self.beyond_end)
        return {
            **{f"partitions_{each}": statuses[each] for each in (RESTORED, SALVAGED, LEFT_OUT)},
            "records_dropped": sum(each.dropped or 0 for each in self.partitions),
            "lost_ranges": sum(len(each.lost) for each in self.partitions if not each.is_left_out),
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


def dropped_text(partitions: Iterable[RestoredPartition]) -> str:
    """Return how many records were dropped, for people."""
    kept = [each for each in partitions if not each.is_left_out]
    dropped = sum(each.dropped or 0 for each in kept)
    if not dropped:
        return (
            "no record has one of the keys to drop: are they in the file as producers wrote them?"
        )
    losing = sum(bool(each.dropped) for each in kept)
    return f"{plural(dropped, 'record')} dropped by key in {plural(losing, 'partition')}"


def report_rows(
    partitions: Iterable[RestoredPartition], offsets: Iterable[GroupOffset]
) -> pa.Table:
    """Return the report: each partition, and what was lost of it; then offsets of groups.

    Of each row the columns of the schema are taken.
    """
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
    """The facts that the runbook is written from, besides the result."""

    link: Link
    identity: Identity
    notes: Sequence[str]
    cluster: ClusterMode
    seeds: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    renames: Mapping[str, str]
    run: str = ""
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
        Link.HARD: "HARD LINKS where they were rolled: a broker that cuts them cuts the dump too",
    }[facts.link]
    yield "WHAT WAS WRITTEN"
    segments = sum(each.segments for each in kept)
    yield f"  {result.output}: {len(kept)} partitions, {segments} segments"
    if facts.run:
        yield f"  They are from {facts.run}: it does not contain later records."
    yield f"  The logs are {logs}."
    yield "  Every log was verified with its checksums, and .kafka_cleanshutdown says so: the"
    yield "  broker recovers no log. Do not change a file before the broker has started."


def _remaining(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    yield "WHAT REMAINS"
    yield "  1. The old cluster must never run beside this one: stop its brokers for good. Both"
    yield "     would accept records for the same topics."
    yield f"  2. Give the files to the broker's user: chown -R kafka: {result.output}"
    named = facts.identity.properties
    if named:
        whose = f"cluster {named.get(CLUSTER_ID)}, node {named.get(NODE_ID)}"
        yield f"  3. meta.properties is there ({whose}):"
        yield "     node and cluster must be those of server.properties and of the controllers."
    else:
        yield "  3. There is no meta.properties yet. Format the directory; what is there stays:"
        yield "       kafka-storage.sh format -t CLUSTER_ID -c server.properties"
    yield f"  4. Set log.dirs={result.output} in server.properties."
    if facts.metadata_directory is not None and facts.cluster is ClusterMode.SAME:
        yield f"     Set metadata.log.dir={facts.metadata_directory}: the metadata log is there."
    yield from _cluster_steps(facts)
    yield "  6. Before the start, look at what it will do:"
    metadata = facts.metadata_directory or "METADATA_DIR"
    yield f"       kafka-index predict --input {result.output} --metadata {metadata}"
    if result.counts["lost_ranges"]:
        yield "     Records that are lost count there, unless a report of this restore says so:"
        yield "     add --known-losses FILE, as --report FILE wrote it."
    if facts.metadata_directory is None:
        yield "     METADATA_DIR is the metadata.log.dir of a controller of the cluster."


def _cluster_steps(facts: RunbookFacts) -> Iterator[str]:
    if facts.cluster is ClusterMode.SAME:
        yield "  5. The metadata log was copied along. The whole cluster must be down, and every"
        yield "     broker that comes back must be restored to the same point in time."
    elif facts.seeds:
        yield "  5. bootstrap.checkpoint of these directories has the topics (.orig: as before):"
        yield from (f"       {path}" for path in facts.seeds)
        yield "     All controllers of the cluster must have been seeded, and none started before."
        yield "     Every partition has this broker as its only replica: add replicas when it runs"
        yield "     (kafka-reassign-partitions.sh). Until then, topics with min.insync.replicas"
        yield "     above 1 accept no record of acks=all."
        yield "     Topics without a retention.ms of their own get the new broker's, 7 days by"
        yield "     default, and 30 seconds after the start what is older is deleted: the old"
        yield "     broker's log.retention.ms is in no dump. Set it in server.properties before."
    else:
        yield "  5. The metadata of the cluster must have these topics with these ids before the"
        yield "     broker starts, with this broker as their leader: a partition of an unknown id"
        yield "     is moved aside, and an empty log takes its place. kafka-topics.sh makes"
        yield "     new ids. For a fresh cluster, restore with --seed; the metadata of the"
        yield "     cluster that the dump is from has them (--cluster same)."


def _not_restored(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    left_out = [each for each in result.partitions if each.is_left_out]
    salvaged = [each for each in result.partitions if each.lost and not each.is_left_out]
    yield "WHAT CANNOT BE RESTORED"
    offsets = (*result.beyond_end, *result.not_renamed)
    if not (left_out or salvaged or facts.notes or facts.groups or offsets):
        yield "  Nothing is missing that the dump shows. What it cannot show: records that no log,"
        yield "  checkpoint or header of it has."
    yield from _first(
        [f"{each.partition.directory_name}: left out: {each.reason}" for each in left_out],
        "partitions more, in the report",
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
        yield f"  and losses of {len(salvaged) - _SHOWN} partitions more, in the report"
    for topic, groups in facts.groups.items():
        yield f"  {topic} has a new id: these groups may lose their offsets: {', '.join(groups)}"
    yield from _renamed(result, facts)
    yield from _first(list(map(str, result.beyond_end)), "committed offsets more, in the report")
    yield from _first(facts.notes, "notes more")


def _renamed(result: RestoreResult, facts: RunbookFacts) -> Iterator[str]:
    """Yield the number of offsets that groups committed of each topic under its old name."""
    for old, new in facts.renames.items():
        groups = Counter(one.group for one in result.not_renamed if one.topic == old)
        if groups:
            shown = ", ".join(sorted(groups)[:_SHOWN])
            yield (
                f"  {old} is restored as {new}, and what groups committed stays under the old name "
                f"(offsets: {groups.total():,}, groups: {len(groups):,}): they begin in {new} as "
                "auto.offset.reset says. To set them, give kafka-consumer-groups.sh "
                "--reset-offsets --from-file the rows not_renamed of the report, under the new "
                f"name: {shown}"
            )


def _kept_by_batches(salvaged: Sequence[RestoredPartition]) -> Iterator[str]:
    """Yield how much less ``--salvage batches`` loses."""
    shown = 0
    for each in salvaged:
        kept = sum(one.kept_by_batches for one in each.lost)
        if kept and shown < _SHOWN:
            shown += 1
            yield (
                f"  {each.partition.directory_name}: --salvage prefix loses {kept:,} offsets more "
                "than --salvage batches would, in sound batches after the damage"
            )


def _first(lines: Sequence[str], rest: str) -> Iterator[str]:
    """Yield the first lines, and how many more there are."""
    yield from (f"  {line}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"  and {len(lines) - _SHOWN:,} {rest}"


def _one_topic() -> Iterator[str]:
    yield "ONE TOPIC INTO A RUNNING CLUSTER"
    yield "  Files are the wrong way: the leader truncates what it does not know, an empty replica"
    yield "  that leads truncates this one to nothing, and the leader epochs do not fit. Start a"
    yield "  broker of its own on this directory, and copy the records with a consumer and a"
    yield "  producer (MirrorMaker does both); offsets and transactions are new there."
