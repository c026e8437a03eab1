"""The files of a partition directory that belong to no live segment, and ``partition.metadata``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from kafka_index.dump.small_files import read_topic_id
from kafka_index.errors import KafkaIndexError, StartRefusedError
from kafka_index.layout.names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TopicPartition,
    index_name_for,
    parse_segment_file,
)
from kafka_index.startup.found_files import check_segment_file_name, is_misnamed_log
from kafka_index.storage import SegmentFile, is_scratch
from kafka_index.storage.directories import Entry
from kafka_index.verification.findings import (
    FileClass,
    FileKind,
    Finding,
    Judgement,
    finding_of,
    refused_by_broker,
)
from kafka_index.verification.verify_settings import KnownTopic

#: By suffix.
KINDS_OF_SEGMENT_FILES = {
    LOG_SUFFIX: FileKind.LOG,
    ".index": FileKind.INDEX,
    ".timeindex": FileKind.TIME_INDEX,
    ".txnindex": FileKind.TXN_INDEX,
    SNAPSHOT_SUFFIX: FileKind.SNAPSHOT,
}
_STRAY = "The partition is stray: an empty log takes its place, and a broker serves none of it."


def other_files(
    partition: TopicPartition,
    directory: str,
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
        name = entry.name
        if name in owned or is_scratch(name):
            continue
        parsed = parse_segment_file(name)
        base_offset = None if parsed is None else parsed.base_offset
        kind = FileKind.LOG if parsed is None else KINDS_OF_SEGMENT_FILES[parsed.kind]
        finding = finding_of(partition, entry.path, kind, FileClass.ORPHAN, base_offset=base_offset)
        if parsed is None:
            if entry.why_not_a_file() is None:
                yield from _misnamed(finding, name, directory)
        elif parsed.transient or parsed.kind == LOG_SUFFIX:
            reason = entry.why_not_a_file()
            effect = "A broker that starts here renames or deletes it." if reason is None else None
            yield finding.judged(Judgement(FileClass.LEFTOVER, found=reason, effect=effect))
        elif parsed.kind != SNAPSHOT_SUFFIX:
            is_lost = parsed.base_offset in lost and entry.info().size_bytes > 0
            yield finding.judged(_orphan(name, is_lost=is_lost))


def _orphan(name: str, *, is_lost: bool) -> Judgement:
    """Return the judgement of an index without a log."""
    log_name = f"{name.partition('.')[0]}{LOG_SUFFIX}"
    if not is_lost:
        effect = "It has no log: a broker that starts here deletes it."
        return Judgement(FileClass.ORPHAN, effect=effect)
    return Judgement(
        FileClass.ORPHAN,
        harmful=True,
        expected=log_name,
        found="no such log",
        effect="A broker that starts here deletes it; the records that it was made of are gone.",
    )


def _misnamed(finding: Finding, name: str, directory: str) -> Iterator[Finding]:
    try:
        check_segment_file_name(name, directory)
    except StartRefusedError as error:
        found, effect = error.message, "A broker exits."
        yield finding.judged(Judgement(FileClass.CORRUPT, harmful=True, found=found, effect=effect))
        return
    if is_misnamed_log(name):
        effect = "A broker opens an empty segment of that offset in the midst of the log."
        found = "its name is not an offset of 20 digits"
        yield finding.judged(Judgement(FileClass.CORRUPT, harmful=True, found=found, effect=effect))


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
        yield finding.judged(refused_by_broker(error))
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
