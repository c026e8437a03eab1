"""Generated copies of a partition with generated damage, and the batches that restore must write.

A history is a list of segments of batches. A copy holds a prefix of it, with index files and
checkpoints, and is damaged then. The oracle is the union of the batches that any copy still holds
byte for byte.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, permutations, takewhile
from pathlib import Path

from kafka_index import build_indexes
from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.partition import engine_runner
from kafka_index.commands.restore.request import RestoreRequest, Salvage
from kafka_index.commands.restore.result import RestoredPartition
from kafka_index.commands.restore.transaction_markers import UNKNOWN_OUTCOME
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.parameters import KafkaSettings
from tests.support.missing_offsets import NAME, checkpoint, write_partition
from tests.support.segments import (
    CODECS,
    COMMIT,
    CONTROL,
    TRANSACTIONAL,
    WRAPPER_CODECS,
    batch,
    marker,
    message,
    packed,
    record,
    wrapper,
)

KINDS = ("plain", "transactions", "compacted", "messages")
_EPOCH = slice(12, 16)
_BASE_MS = 1_700_000_000_000
#: Index entries every other batch or so.
_CONFIG = LogConfig.of_properties({"log.index.interval.bytes": "300"})


@dataclass(frozen=True, order=True)
class Batch:
    """A batch, or a message of magic 0 or 1, of a history."""

    first: int
    last: int
    data: bytes

    @property
    def is_transactional(self) -> bool:
        """Whether it is of a transaction."""
        return self.data[16] == 2 and bool(int.from_bytes(self.data[21:23]) & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it is a transaction marker."""
        return self.data[16] == 2 and bool(int.from_bytes(self.data[21:23]) & CONTROL)

    @property
    def is_commit(self) -> bool:
        """Whether it is a marker that commits."""
        # Before the type in the key: length, attributes, two deltas, length of the key, version.
        return self.is_control and int.from_bytes(self.data[68:70]) == COMMIT

    @property
    def producer_id(self) -> int:
        """Its producer; -1 for none."""
        return int.from_bytes(self.data[43:51], signed=True) if self.data[16] == 2 else -1

    @property
    def content(self) -> bytes:
        """All bytes but those of the leader epoch, which no checksum covers."""
        data = bytearray(self.data)
        if data[16] == 2:
            data[_EPOCH] = bytes(4)
        return bytes(data)


Segments = list[list[Batch]]


@dataclass
class Dump:
    """The copies of a partition, and what was done to them."""

    root: Path
    kind: str
    history: Segments
    cleaned_to: int
    known_end: int = 0
    is_rolled_apart: bool = False
    copies: list[Path] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    @property
    def batches(self) -> list[Batch]:
        """All batches of the history."""
        return [each for segment in self.history for each in segment]

    def intact_batches(self) -> Segments:
        """The oracle: of each segment, the batches that any copy holds byte for byte."""
        logs = [log.read_bytes() for copy in self.copies for log in copy.glob(f"{NAME}/*.log")]
        return [
            [one for one in segment if any(one.data in log for log in logs)]
            for segment in self.history
        ]


def draw_dump(root: Path, seed: str) -> Dump:
    """Write random copies of a random partition, with random damage."""
    draw = random.Random(seed)
    kind = draw.choice(KINDS)
    history, cleaned_to = _history(draw, kind)
    dump = Dump(root, kind, history, cleaned_to)
    for number in range(draw.choice([1, 2, 2, 2, 3, 3])):
        segments = [list(each) for each in history]
        if number and draw.random() < 0.3:
            del segments[-1][draw.randrange(1, len(segments[-1]) + 1) :]
        if draw.random() < 0.15:
            dump.is_rolled_apart = True
            segments = _rolled(draw, segments)
        copy = root / f"copy-{number}"
        write_partition(
            copy, {segment[0].first: b"".join(one.data for one in segment) for segment in segments}
        )
        if draw.random() < 0.8:
            build_indexes(copy, in_place=True, config=_CONFIG)
        end = _write_checkpoints(draw, copy, segments, cleaned_to)
        dump.known_end = max(dump.known_end, end)
        dump.copies.append(copy)
    for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4])):
        _damage(draw, dump)
    return dump


def _history(draw: random.Random, kind: str) -> tuple[Segments, int]:
    segments: Segments = []
    offset = draw.choice([0, 0, 700])
    epoch = 0
    open_since: dict[int, int] = {}
    magic = draw.choice([0, 1])
    for _ in range(draw.randrange(1, 5)):
        segments.append([])
        for _ in range(draw.randrange(3, 14)):
            epoch += draw.random() < 0.08
            one = _random_batch(draw, kind, offset, magic, open_since)
            if one.data[16] == 2:
                data = bytearray(one.data)
                data[_EPOCH] = epoch.to_bytes(4)
                one = Batch(one.first, one.last, bytes(data))
            segments[-1].append(one)
            offset = one.last + 1
    cleaned_to = 0
    if kind == "compacted":
        # The active segment is never cleaned.
        cleaned_to = segments[-1][0].first
        for segment in segments[:-1]:
            segment[1:] = [one for one in segment[1:] if draw.random() < 0.7]
    return segments, cleaned_to


def _rolled(draw: random.Random, segments: Segments) -> Segments:
    """Return the batches in segments that another broker has rolled."""
    batches = [one for segment in segments for one in segment]
    count = min(len(segments), len(batches))
    starts = [0, *sorted(draw.sample(range(1, len(batches)), count - 1)), len(batches)]
    return [batches[start:end] for start, end in pairwise(starts)]


def _random_batch(
    draw: random.Random, kind: str, offset: int, magic: int, open_since: dict[int, int]
) -> Batch:
    count, time = draw.choice([1, 1, 2, 3, 7]), _BASE_MS + offset
    if kind == "messages":
        if draw.random() < 0.5:
            value = draw.randbytes(draw.randrange(5, 60))
            return Batch(offset, offset, message(offset, magic, time, value))
        inside = [(at + (0 if magic else offset), time + at) for at in range(count)]
        codec = draw.choice(WRAPPER_CODECS)
        last = offset + count - 1
        return Batch(offset, last, wrapper(last, magic, inside, codec, value_size=count + 5))
    producer, sequence = -1, -1
    if kind == "transactions":
        producer = draw.choice([-1, 11, 12, 13])
        if producer > 0 and producer in open_since and draw.random() < 0.4:
            del open_since[producer]
            is_commit = draw.random() < 0.6
            data = marker(offset, producer, 0, commit=is_commit, timestamp=time)
            return Batch(offset, offset, data)
        if producer > 0:
            sequence = open_since.setdefault(producer, 0)
            open_since[producer] += count
    codec = draw.choice([0, 0, *CODECS])
    payload = b"".join(
        record(at, at, draw.randbytes(4), draw.randbytes(draw.randrange(60))) for at in range(count)
    )
    data = batch(
        offset,
        timestamps=[time + at for at in range(count)],
        producer_id=producer,
        producer_epoch=-1 if producer < 0 else 0,
        base_sequence=sequence,
        transactional=producer > 0,
        attributes=codec,
        payload=packed(payload, codec),
        last_offset_delta=count - 1,
    )
    return Batch(offset, offset + count - 1, data)


def _write_checkpoints(draw: random.Random, copy: Path, segments: Segments, cleaned_to: int) -> int:
    """Write the checkpoints of a copy; return the end that they know."""
    end = next(segment[-1].last + 1 for segment in reversed(segments) if segment)
    high_watermark = end if draw.random() < 0.8 else 0
    recovery_point = segments[-1][0].first if segments[-1] else end
    checkpoint(copy, "replication-offset-checkpoint", high_watermark)
    checkpoint(copy, "recovery-point-offset-checkpoint", recovery_point)
    if cleaned_to:
        checkpoint(copy, "cleaner-offset-checkpoint", cleaned_to)
    return max(high_watermark, recovery_point)


def _damage(draw: random.Random, dump: Dump) -> None:
    """Damage a log of a copy."""
    copy = draw.choice(dump.copies)
    logs = sorted((copy / NAME).glob("*.log"))
    if not logs:
        return
    log = draw.choice(logs)
    data = log.read_bytes()
    places = sorted((data.index(one.data), one) for one in dump.batches if one.data in data)
    what = draw.choice(["flip"] * 4 + ["cut", "cut at batch", "empty", "repeat", "reorder"])
    if draw.random() < 0.2 and len(logs) > 1:
        what = draw.choice(["remove", "remove all"])
        for file in copy.glob(f"{NAME}/{log.stem}.*"):
            if what == "remove all" or file == log:
                file.unlink()
    elif places:
        log.write_bytes(_damaged(draw, what, data, places))
    dump.changes.append(f"{copy.name}/{log.name}: {what}")


def _damaged(draw: random.Random, what: str, data: bytes, places: list[tuple[int, Batch]]) -> bytes:
    """Return a log with random damage, from the places of its batches."""
    at, one = draw.choice(places)
    if what == "flip":
        # No checksum covers the length, the leader epoch and the magic.
        first, end = (8, 27) if draw.random() < 0.3 else (0, len(one.data))
        at += draw.randrange(first, end)
        changed = draw.choice([1 << draw.randrange(8), 1 << draw.randrange(8), 0xFF])
        return data[:at] + bytes([data[at] ^ changed]) + data[at + 1 :]
    ends = {"cut": draw.randrange(len(data)), "cut at batch": at, "empty": 0}
    if what in ends:
        return data[: ends[what]]
    before, other = draw.choice(places)
    if what == "repeat":
        return data[:before] + one.data + data[before:]
    (first, one), (second, other) = sorted([(at, one), (before, other)])
    if first == second:
        return data
    between = data[first + len(one.data) : second]
    return data[:first] + other.data + between + one.data + data[second + len(other.data) :]


def restore(copies: tuple[Path, ...], output: Path, salvage: Salvage) -> RestoredPartition:
    """Restore copies in an order."""
    request = RestoreRequest(
        inputs=tuple(str(copy) for copy in copies),
        output=str(output),
        salvage=salvage,
        config=KafkaSettings(_CONFIG),
    )
    result = RestoreJob.prepare(request).run(engine_runner(ThreadEngine(1)))
    (found,) = result.partitions
    return found


def kept_batches(directory: Path) -> list[bytes]:
    """The entries of all logs of a partition, by the lengths in their headers."""
    result = []
    for log in sorted(directory.glob("*.log")):
        data, at = log.read_bytes(), 0
        while at < len(data):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12])
            result.append(data[at:end])
            at = end
    return result


def faults(dump: Dump, salvage: Salvage) -> Iterator[str]:
    """Restore the copies in every order; yield a message for each error."""
    by_content = {each.content: each for each in dump.batches}
    held = dump.intact_batches()
    outcomes = []
    for order, copies in enumerate(permutations(dump.copies)):
        output = dump.root / f"out-{salvage}-{order}"
        result = restore(copies, output, salvage)
        kept = [Batch(0, 0, one).content for one in kept_batches(output / NAME)]
        outcomes.append((result.lost, result.notes, result.code, _files(output / NAME)))
        yield from _faults_of(dump, salvage, result, kept, by_content, held)
        shutil.rmtree(output)
    if any(outcome != outcomes[0] for outcome in outcomes):
        yield "the outcome differs by the order of inputs"


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*"))}


def _faults_of(
    dump: Dump,
    salvage: Salvage,
    found: RestoredPartition,
    kept: list[bytes],
    by_content: dict[bytes, Batch],
    held: Segments,
) -> Iterator[str]:
    union = [each for segment in held for each in segment]
    if salvage is Salvage.NONE and found.is_skipped:
        if len(union) == len(dump.batches) and not dump.changes:
            yield f"left out, and all is there: {found.reason}"
        return
    if found.is_skipped:
        if union:
            yield f"left out: {found.code} {found.reason}"
        return
    union_offsets = {each.first for each in union}
    kept = [one for one in kept if one in by_content or not _is_new_marker(one, union_offsets)]
    if kept and kept[-1] not in by_content:
        # Nothing shows that a base offset is wrong after which nothing comes.
        del kept[-1]
    strange = sum(one not in by_content for one in kept)
    if strange:
        yield f"{strange} batches of the output are not those of the history"
        return
    restored = [by_content[one] for one in kept]
    if [each.first for each in restored] != sorted({each.first for each in restored}):
        yield "the output is out of order, or has a batch twice"
    there = set(restored)
    left_out = [
        range(each.first_offset or 0, (each.last_offset or 0) + 1)
        for each in found.lost
        if each.code == UNKNOWN_OUTCOME
    ]
    missing = [
        one
        for one in _expected_batches(dump, salvage, held)
        if one not in there
        and not (one.is_transactional and any(one.first in span for span in left_out))
    ]
    if missing:
        yield f"held, and not restored: {_ranges(missing)}"
    if any((each.last_offset or 0) >= INT64_MAX - 1 for each in found.lost):
        yield "a loss is reported up to the largest offset"
    lost = [
        (each.first_offset, each.last_offset)
        for each in found.lost
        if each.records != 0 and each.first_offset is not None and each.code != UNKNOWN_OUTCOME
    ]
    told = [
        one
        for one in restored
        if any(one.last >= first and (last is None or one.first <= last) for first, last in lost)
    ]
    if told:
        yield f"reported as lost, and restored: {_ranges(told)}"
    silent = [
        one
        for one in dump.batches
        if restored
        and restored[0].first <= one.first
        and one.last < dump.known_end
        and (dump.kind != "compacted" or one.first >= dump.cleaned_to)
        and one not in there
        and not any(one.first in span for span in left_out)
        and not any(
            first <= one.first and (last is None or one.last <= last) for first, last in lost
        )
    ]
    if silent:
        yield f"neither restored nor reported: {_ranges(silent)}"


def _is_new_marker(entry: bytes, held_offsets: set[int]) -> bool:
    """Return whether an entry is a transaction marker at an offset that no copy holds."""
    is_control = entry[16] == 2 and bool(int.from_bytes(entry[21:23]) & CONTROL)
    return is_control and int.from_bytes(entry[:8]) not in held_offsets


def _expected_batches(dump: Dump, salvage: Salvage, held: Segments) -> Iterator[Batch]:
    """Yield the batches that must be restored: the first bad batch may end a segment."""
    for segment, original in zip(held, dump.history, strict=True):
        if salvage is not Salvage.PREFIX:
            yield from segment
        elif not dump.is_rolled_apart:
            yield from (one for one, _ in takewhile(_is_same, zip(segment, original, strict=False)))


def _is_same(pair: tuple[Batch, Batch]) -> bool:
    return pair[0] == pair[1]


def _ranges(batches: list[Batch]) -> str:
    return ", ".join(f"{each.first}-{each.last}" for each in batches)


def start_random_directory(root: Path, seed: str) -> list[str]:
    """Draw a dump and how it is salvaged; return what is wrong, with what was done to the dump."""
    draw = random.Random(f"{seed} salvage")
    dump = draw_dump(root, seed)
    salvage = draw.choice([Salvage.BATCHES, Salvage.PREFIX, Salvage.NONE])
    listing = list(dict.fromkeys(faults(dump, salvage)))
    return [f"{seed} ({dump.kind}, {salvage}): {listing} after {dump.changes}"] if listing else []
