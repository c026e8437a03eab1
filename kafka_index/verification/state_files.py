"""Judging the state beside the logs of a partition: its leader epochs, and its snapshots together.

Epochs are compared with those of the batches; for snapshots, presence and content count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kafka_index.dump.small_files import read_text
from kafka_index.errors import (
    CorruptSnapshotError,
    InputError,
    InvalidEpochError,
    KafkaIndexError,
    ReadError,
)
from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.partition_state import ProducerExpiration
from kafka_index.state.snapshots import decode_snapshot, list_snapshots, snapshot_path
from kafka_index.stores import store_of
from kafka_index.verification.findings import (
    FileClass,
    FileKind,
    Finding,
    Judgement,
    finding_of,
    refused_by_broker,
)
from kafka_index.verification.index_files import IDENTICAL, NOT_JUDGED
from kafka_index.verification.segment import EpochRun

_NO_STATE = (
    "With the marker a broker concludes that there are no producers: open transactions vanish, and "
    "their records are exposed."
)
_REMOVED = "A broker that starts here removes it."
_EARLIER = "A broker removes it, and loads an earlier one or reads the log instead."
_WRITTEN_ANEW = "A broker that starts here recovers the segment before it, and writes it anew."
_OTHER_STATE = (
    "A broker that loads it takes other producers or open transactions for true: it can accept "
    "duplicates, refuse producers, or expose records of open transactions."
)


def epoch_findings(
    partition: TopicPartition,
    directory: str,
    runs: Sequence[EpochRun],
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
        yield finding.judged(_judge_epochs(text, path, runs, *offsets))
    elif runs:
        effect = "Followers and consumers cannot compare epochs: divergence is not found."
        yield replace(finding, harmful=has_indexes, effect=effect)


def _judge_epochs(
    text: str,
    path: str,
    runs: Iterable[EpochRun],
    log_start_offset: int,
    end_offset: int | None,
) -> Judgement:
    """Judge the text of a checkpoint; epochs before the start of the log are not kept."""
    try:
        cache = LeaderEpochCache.from_text(text, path=path)
    except (InputError, InvalidEpochError) as error:
        return refused_by_broker(error)
    wanted = LeaderEpochCache()
    for run in runs:
        if run.last_offset < log_start_offset:
            continue
        wanted.assign_from_batch(run.epoch, max(run.first_offset, log_start_offset))
        for offset in (max(run.first_offset, log_start_offset), run.last_offset):
            found = cache.epoch_for_offset(offset)
            if found == run.epoch:
                continue
            return Judgement(
                FileClass.INCOMPLETE if found is None else FileClass.CORRUPT,
                harmful=True,
                expected=f"epoch {run.epoch} at offset {offset}",
                found="no epoch" if found is None else f"epoch {found}",
                effect="Followers and consumers that compare epochs truncate at a wrong offset, "
                "or not at all.",
            )
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
        finding = _finding(partition, directory, offset)
        try:
            data = _read(finding.path)
        except KafkaIndexError as error:
            yield finding.unreadable(error)
            continue
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
            judgement = _within(data, offset, None if end is None else wanted.get(end), expiration)
        is_rewritten = recovered_from is not None and recovered_from < offset
        if judgement.harmful and is_rewritten and judgement.file_class is not FileClass.STALE:
            judgement = replace(judgement, harmful=False, effect=_WRITTEN_ANEW)
        yield finding.judged(judgement)
    yield from _missing(partition, directory, set(found), wanted, is_clean=is_clean)


def _read(path: str) -> bytes:
    try:
        return store_of(path).read(path)
    except FileNotFoundError as error:
        raise ReadError("the snapshot was removed after it was listed", path=path) from error


def _missing(
    partition: TopicPartition,
    directory: str,
    found: set[int],
    wanted: Mapping[int, bytes],
    *,
    is_clean: bool,
) -> Iterator[Finding]:
    """Yield the row of snapshots that are not there: the last, where no other is."""
    if found or not wanted:
        return
    last = max(wanted)
    has_producers = len(decode_snapshot(wanted[last])) > 0
    if has_producers:
        effect = _NO_STATE if is_clean else "A broker reads the log for its producers."
        judgement = Judgement(FileClass.MISSING, harmful=is_clean, effect=effect)
        yield _finding(partition, directory, last).judged(judgement)


def _within(
    data: bytes, offset: int, at_end: bytes | None, expiration: ProducerExpiration
) -> Judgement:
    """Return the judgement of a snapshot taken inside the last segment, as at a shutdown.

    A producer whose last batch lies before it was the same then.
    """
    try:
        entries = decode_snapshot(data)
    except CorruptSnapshotError as error:
        return Judgement(
            FileClass.CORRUPT,
            position_bytes=error.position_bytes,
            found=error.message,
            effect=_EARLIER,
        )
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
    try:
        entries = decode_snapshot(data)
    except CorruptSnapshotError as error:
        return Judgement(
            FileClass.CORRUPT,
            position_bytes=error.position_bytes,
            expected=error.expected,
            found=error.found,
            effect=_EARLIER,
        )
    if built is None:
        return NOT_JUDGED
    found = {int(row["producer_id"]): row for row in expiration.live(entries)}
    for row in expiration.live(decode_snapshot(built)):
        other = found.pop(int(row["producer_id"]), None)
        difference = _difference(row, other, first_offset)
        if difference is None or is_compacted:
            continue
        return Judgement(
            FileClass.CORRUPT if other is not None else FileClass.INCOMPLETE,
            harmful=True,
            expected=f"producer {int(row['producer_id'])}: {difference[0]}",
            found=difference[1],
            effect=_OTHER_STATE,
        )
    for row in found.values():
        if not is_compacted and int(row["last_offset"]) >= first_offset:
            return Judgement(
                FileClass.CORRUPT,
                harmful=True,
                expected="a producer of the log",
                found=f"producer {int(row['producer_id'])}, last offset {int(row['last_offset'])}",
                effect=_OTHER_STATE,
            )
    return Judgement(FileClass.VALID, found="the same producers, but for idle or older ones")


def _difference(
    wanted: np.void, found: np.void | None, first_offset: int
) -> tuple[str, str] | None:
    if found is None:
        return f"last offset {int(wanted['last_offset'])}", "no such producer"
    for name in ("producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp_ms"):
        if wanted[name] != found[name]:
            return f"{name} {int(wanted[name])}", f"{int(found[name])}"
    # What lies before the log is known to the broker that wrote the file, and not from the log.
    if wanted["coordinator_epoch"] not in (-1, found["coordinator_epoch"]):
        return (
            f"coordinator_epoch {int(wanted['coordinator_epoch'])}",
            f"{int(found['coordinator_epoch'])}",
        )
    name = "current_txn_first_offset"
    if wanted[name] != found[name] and not 0 <= found[name] < first_offset:
        return f"{name} {int(wanted[name])}", f"{int(found[name])}"
    return None


def _finding(partition: TopicPartition, directory: str, offset: int) -> Finding:
    path = snapshot_path(directory, offset)
    return finding_of(partition, path, FileKind.SNAPSHOT, FileClass.MISSING, base_offset=offset)
