"""Judging the files beside the logs of a partition that are not of one live segment alone.

Leader epochs are compared with those of the batches; for snapshots, presence and content count.
Then come ``partition.metadata`` and the files of segments that are not live.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from kafka_index.commands.verify.findings import (
    FileClass,
    FileKind,
    Finding,
    Judgement,
    finding_of,
    found_by,
    kind_of,
)
from kafka_index.commands.verify.index_files import IDENTICAL, NOT_JUDGED
from kafka_index.commands.verify.verify_settings import KnownTopic
from kafka_index.core.errors import (
    CorruptSnapshotError,
    InputError,
    InvalidEpochError,
    KafkaIndexError,
    ReadError,
    StartRefusedError,
)
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    INDEX_SUFFIXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TopicPartition,
    index_name_for,
    parse_segment_file,
)
from kafka_index.core.fs.directories import Entry
from kafka_index.core.fs.registry import store_of
from kafka_index.core.log.state.epoch_ranges import EpochRange, first_wrong_epoch
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.log.state.snapshots import (
    compare_producers,
    decode_snapshot,
    list_snapshots,
    snapshot_path,
)
from kafka_index.core.logdir.metadata_files import read_text, read_topic_id
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.temporary_files import is_scratch
from kafka_index.core.startup.found_files import NO_OFFSET, is_misnamed_log, is_refused_name

_NO_STATE = (
    "With the marker a broker concludes that there are no producers: open transactions vanish, and "
    "their records are exposed."
)
_REMOVED = "A broker that starts here removes it."
_EARLIER = "A broker removes it, and loads an earlier one or reads the log instead."
_WRITTEN_ANEW = "A broker that starts here recovers the segment before it, and writes it anew."
_NO_LOG = "It has no log: a broker that starts here deletes it."
_LOST_LOG = "A broker that starts here deletes it; the records that it was made of are gone."
_STRAY = "The partition is stray: an empty log takes its place, and a broker serves none of it."
_OTHER_STATE = (
    "A broker that loads it takes other producers or open transactions for true: it can accept "
    "duplicates, refuse producers, or expose records of open transactions."
)


def epoch_findings(
    partition: TopicPartition,
    directory: str,
    runs: Sequence[EpochRange],
    offsets: tuple[int, int | None],
    *,
    has_indexes: bool,
) -> Iterator[Finding]:
    """Yield the row of the checkpoint of a partition; none if it is not missed.

    `runs` are those of its batches, in order, and `offsets` the start and the end of the log, None
    if unknown. Without index files it is a dump of logs alone.
    """
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    finding = finding_of(partition, path, FileKind.EPOCHS, FileClass.MISSING)
    try:
        text = read_text(path)
    except KafkaIndexError as error:
        yield finding.unreadable(error)
        return
    if text is not None:
        try:
            cache = LeaderEpochCache.from_text(text, path=path)
        except (InputError, InvalidEpochError) as error:
            yield finding.refused(error)
        else:
            yield finding.judged(_judge_epochs(text, cache, runs, *offsets))
    elif runs:
        effect = "Followers and consumers cannot compare epochs: divergence is not found."
        yield replace(finding, harmful=has_indexes, effect=effect)


def _judge_epochs(
    text: str,
    cache: LeaderEpochCache,
    runs: Sequence[EpochRange],
    log_start_offset: int,
    end_offset: int | None,
) -> Judgement:
    """Judge the text of a checkpoint; epochs before the start of the log are not kept."""
    wrong = first_wrong_epoch(cache, runs, log_start_offset)
    if wrong is not None:
        return Judgement(
            FileClass.INCOMPLETE if wrong.found is None else FileClass.CORRUPT,
            harmful=True,
            expected=f"epoch {wrong.expected} at offset {wrong.offset}",
            found="no epoch" if wrong.found is None else f"epoch {wrong.found}",
            effect="Followers and consumers that compare epochs truncate at a wrong offset, or not "
            "at all.",
        )
    wanted = LeaderEpochCache()
    for run in runs:
        if run.last_offset >= log_start_offset:
            wanted.assign_from_batch(run.epoch, max(run.first_offset, log_start_offset))
    if cache.entries == wanted.entries and text == wanted.text():
        return IDENTICAL
    for at, entry in enumerate(cache.entries):
        if end_offset is not None and entry.start_offset > end_offset:
            return Judgement(
                FileClass.STALE,
                entry=at,
                expected=f"a start offset below {end_offset}",
                found=f"epoch {entry.epoch} from offset {entry.start_offset}",
                effect="A broker drops the epochs that start at the log end or after it.",
            )
    return Judgement(FileClass.VALID, found="the epochs of all batches, and epochs without records")


def judge_snapshots(
    partition: TopicPartition,
    directory: str,
    built: Mapping[str, bytes] | None,
    expiration: ProducerExpiration,
    offsets: tuple[int, int | None],
    base_offsets: Sequence[int],
    *,
    is_clean: bool,
    is_compacted: bool,
    recovered_from: int | None,
) -> Iterator[Finding]:
    """Yield a row per snapshot.

    `built` has the expected snapshots by name, None if they are not known. A broker that starts now
    drops the producers that the expiration finds idle. `offsets` are the start and the end of the
    log, the end None if unknown. `is_clean`: the marker is there; `is_compacted`: batches of
    producers may be gone. Snapshots after `recovered_from`, the base offset of the first segment
    that a start recovers, are removed.
    """
    start, end = offsets
    wanted = {
        parsed.base_offset: data
        for name, data in (built or {}).items()
        if (parsed := parse_segment_file(name)) is not None and parsed.kind == SNAPSHOT_SUFFIX
    }
    try:
        found = list_snapshots(directory)
    except FileNotFoundError:
        found = []
    for offset in found:
        path = snapshot_path(directory, offset)
        finding = _snapshot_row(partition, path, offset)
        try:
            data = store_of(path).read(path)
        except FileNotFoundError:
            gone = ReadError("the snapshot was removed after it was listed", path=path)
            yield finding.unreadable(gone)
            continue
        except KafkaIndexError as error:
            yield finding.unreadable(error)
            continue
        try:
            if end is not None and offset > end:
                judgement = Judgement(
                    FileClass.STALE,
                    harmful=True,
                    expected=f"an offset up to {end}, where the log ends",
                    found=str(offset),
                    effect=f"{_REMOVED} The log reached that offset once.",
                )
            elif offset in wanted or built is None or offset in base_offsets:
                judgement = _judge_snapshot(
                    data, wanted.get(offset), expiration, start, is_compacted=is_compacted
                )
            elif offset < max(base_offsets) or offset <= start:
                judgement = Judgement(FileClass.ORPHAN, effect=_REMOVED)
            else:
                at_end = None if end is None else wanted.get(end)
                judgement = _within(data, offset, at_end, expiration)
        except CorruptSnapshotError as error:
            judgement = Judgement(
                FileClass.CORRUPT,
                position_bytes=error.position_bytes,
                expected=error.expected,
                found=found_by(error),
                effect=_EARLIER,
            )
        is_rewritten = recovered_from is not None and recovered_from < offset
        if judgement.harmful and is_rewritten and judgement.file_class is not FileClass.STALE:
            judgement = replace(judgement, harmful=False, effect=_WRITTEN_ANEW)
        yield finding.judged(judgement)
    if wanted and not found and len(decode_snapshot(wanted[max(wanted)])):
        effect = _NO_STATE if is_clean else "A broker reads the log for its producers."
        row = _snapshot_row(partition, snapshot_path(directory, max(wanted)), max(wanted))
        yield replace(row, harmful=is_clean, effect=effect)


def _snapshot_row(partition: TopicPartition, path: str, offset: int) -> Finding:
    return finding_of(partition, path, FileKind.SNAPSHOT, FileClass.MISSING, base_offset=offset)


def _within(
    data: bytes, offset: int, at_end: bytes | None, expiration: ProducerExpiration
) -> Judgement:
    """Return the judgement of a snapshot taken inside the last segment, as at a shutdown.

    A producer whose last batch lies before it was the same then.
    """
    entries = decode_snapshot(data)
    stored = {int(row["producer_id"]): int(row["last_offset"]) for row in entries}
    late = [name for name, last in stored.items() if last >= offset]
    missing = []
    if at_end is not None:
        missing = [
            int(row["producer_id"])
            # Producers that are idle now may have been dropped then.
            for row in expiration.live(decode_snapshot(at_end))
            if 0 <= int(row["last_offset"]) < offset
            and stored.get(int(row["producer_id"])) != int(row["last_offset"])
        ]
    if late or missing:
        return Judgement(
            FileClass.CORRUPT,
            harmful=True,
            expected=f"the producers at offset {offset}",
            found=f"producer {(late or missing)[0]} as of another offset",
            effect=_OTHER_STATE,
        )
    return Judgement(FileClass.VALID, found="taken inside the segment")


def _judge_snapshot(
    data: bytes,
    built: bytes | None,
    expiration: ProducerExpiration,
    first_offset: int,
    *,
    is_compacted: bool,
) -> Judgement:
    """Judge a ``.snapshot``, against the built one if it is known.

    A transaction may be open since before `first_offset`, where the log begins; in a compacted
    topic batches of producers may be gone.
    """
    if data == built:
        return IDENTICAL
    entries = decode_snapshot(data)
    if built is None:
        return NOT_JUDGED
    difference = None
    if not is_compacted:
        live = expiration.live(decode_snapshot(built))
        difference = compare_producers(expiration.live(entries), live, first_offset)
    if difference is not None:
        return Judgement(
            FileClass.INCOMPLETE if difference.is_missing else FileClass.CORRUPT,
            harmful=True,
            expected=f"producer {difference.producer_id}: {difference.expected}",
            found=difference.found,
            effect=_OTHER_STATE,
        )
    return Judgement(FileClass.VALID, found="the same producers, but for idle or older ones")


def other_files(
    partition: TopicPartition,
    segments: Sequence[SegmentFile],
    entries: Sequence[Entry],
    lost: Collection[int],
) -> Iterator[Finding]:
    """Yield a row per file of a segment that is not live.

    `entries` is the directory, scanned; `lost` are the base offsets of the logs that are gone while
    their indexes are there.
    """
    live = {os.path.basename(segment.log_path) for segment in segments}
    swaps = {name for name in live if name.endswith(SWAP_SUFFIX)}
    owned = {index_name_for(name, suffix) for name in live for suffix in INDEX_SUFFIXES} | live
    owned |= {name.removesuffix(SWAP_SUFFIX) + SWAP_SUFFIX for name in swaps}
    for entry in sorted(entries, key=lambda entry: entry.name):
        name, judgement = entry.name, None
        if name in owned or is_scratch(name):
            continue
        parsed, reason = parse_segment_file(name), entry.why_not_a_file()
        if parsed is None:
            judgement = _judge_name(name) if reason is None else None
        elif parsed.transient or parsed.kind == LOG_SUFFIX:
            effect = "A broker that starts here renames or deletes it." if reason is None else None
            judgement = Judgement(FileClass.LEFTOVER, found=reason, effect=effect)
        elif parsed.kind != SNAPSHOT_SUFFIX:
            judgement = Judgement(FileClass.ORPHAN, effect=_NO_LOG)
            if parsed.base_offset in lost and entry.info().size_bytes > 0:
                log = f"{name.partition('.')[0]}{LOG_SUFFIX}"
                judgement = Judgement(
                    FileClass.ORPHAN,
                    harmful=True,
                    expected=log,
                    found="no such log",
                    effect=_LOST_LOG,
                )
        if judgement is not None:
            base_offset = None if parsed is None else parsed.base_offset
            kind = FileKind.LOG if parsed is None else kind_of(parsed.kind)
            row = finding_of(partition, entry.path, kind, FileClass.ORPHAN, base_offset=base_offset)
            yield row.judged(judgement)


def _judge_name(name: str) -> Judgement | None:
    """Return the judgement of a file whose name is not that of a segment's file."""
    if is_refused_name(name):
        found, effect = NO_OFFSET, "A broker exits."
    elif is_misnamed_log(name):
        found = "its name is not an offset of 20 digits"
        effect = "A broker opens an empty segment of that offset in the midst of the log."
    else:
        return None
    return Judgement(FileClass.CORRUPT, harmful=True, found=found, effect=effect)


def judge_metadata(
    partition: TopicPartition, directory: str, topic: KnownTopic | None, *, is_known: bool
) -> Iterator[Finding]:
    """Yield the row of a ``partition.metadata``.

    `topic` is that of the cluster's metadata. `is_known`: the directory lies in a data directory,
    where a broker wants the file.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    finding = finding_of(partition, path, FileKind.METADATA, FileClass.MISSING)
    try:
        topic_id = read_topic_id(directory)
    except StartRefusedError as error:
        yield finding.refused(error)
    except KafkaIndexError as error:
        yield finding.unreadable(error)
    else:
        if topic_id is not None and topic is not None and topic_id != topic.topic_id:
            yield finding.judged(
                Judgement(
                    FileClass.FOREIGN,
                    harmful=True,
                    expected=f"topic id {topic.topic_id}, as the metadata has it",
                    found=f"topic id {topic_id}",
                    effect=_STRAY,
                )
            )
        elif topic_id is not None:
            yield finding.judged(Judgement(FileClass.VALID, found=f"topic id {topic_id}"))
        elif is_known:
            yield finding.judged(Judgement(FileClass.MISSING, harmful=True, effect=_STRAY))
