"""Judging the ``.snapshot`` files of a partition together: which are there, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kafka_index.errors import CorruptSnapshotError, KafkaIndexError, ReadError
from kafka_index.layout.names import SNAPSHOT_SUFFIX, TopicPartition, parse_segment_file
from kafka_index.state.partition_state import ProducerExpiration
from kafka_index.state.snapshots import decode_snapshot, list_snapshots, snapshot_path
from kafka_index.stores import store_of
from kafka_index.verification.findings import FileClass, FileKind, Finding, Judgement
from kafka_index.verification.state_files import OTHER_STATE, judge_snapshot

_NO_STATE = (
    "With the marker a broker concludes that there are no producers: open transactions vanish, and "
    "their records are exposed."
)
_REMOVED = "A broker that starts here removes it."


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
) -> Iterator[Finding]:
    """Yield a row per snapshot.

    Parameters
    ----------
    partition : TopicPartition
        Whose they are.
    directory : str
        Where they are.
    built : mapping of str to bytes, optional
        What they should be, by name; None where that is not known.
    expiration : ProducerExpiration
        Whose idle producers a broker that starts now drops.
    offsets : tuple of int
        Where the log starts, and where it ends; None where the end is not known.
    base_offsets : sequence of int
        Of the segments.
    is_clean, is_compacted : bool
        The marker is there; batches of producers may be gone.
    """
    start, end = offsets
    wanted = {
        parsed.base_offset: data
        for name, data in (built or {}).items()
        if (parsed := parse_segment_file(name)) is not None and parsed.kind == SNAPSHOT_SUFFIX
    }
    try:
        found = list_snapshots(directory)
    except (OSError, KafkaIndexError):
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
            judgement = judge_snapshot(
                data, wanted.get(offset), expiration, start, is_compacted=is_compacted
            )
        elif offset < max(base_offsets) or offset <= start:
            judgement = Judgement(FileClass.ORPHAN, effect=_REMOVED)
        else:
            judgement = _within(data, offset, None if end is None else wanted.get(end), expiration)
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
            effect="A broker removes it, and loads an earlier one or reads the log instead.",
        )
    stored = {int(row["producer_id"]): int(row["last_offset"]) for row in entries}
    late = [name for name, last in stored.items() if last >= offset]
    missing = []
    if at_end is not None:
        missing = [
            int(row["producer_id"])
            # Those that are idle now may have been dropped then.
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
            effect=OTHER_STATE,
        )
    return Judgement(FileClass.VALID, found="taken inside the segment")


def _finding(partition: TopicPartition, directory: str, offset: int) -> Finding:
    path = snapshot_path(directory, offset)
    return Finding(
        partition.topic,
        partition.partition,
        offset,
        path,
        FileKind.SNAPSHOT,
        FileClass.MISSING,
    )
