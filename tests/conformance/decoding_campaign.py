"""Random logs, read with random options by us and by Kafka's own classes, and compared.

Each seed has two logs: one with anything that may be wrong, read by Kafka batch by batch, and a
sound one, read by Kafka's consumer (`tests.conformance.consumed_rows`).

    python -m tests.conformance.decoding_campaign --seed 0 --count 20000

A log is all in its seed: ``--seed N --count 1`` is the log of a difference. Differences are printed
and counted; the exit code is 1 if there were any.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import pyarrow as pa

import kafka_index
from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.query import range_scan
from kafka_index.core.records import record_decoder
from kafka_index.core.records.record_table import CORRUPT_RECORD, RECORD_SCHEMA
from tests.support.random_records import LogGenerator, RandomLog, draw_log

from .consumed_rows import compare_with_consumer
from .expected_rows import (
    Damage,
    ReadOptions,
    Row,
    SegmentRead,
    expected_rows,
    header_last_offset,
    is_compressed,
)
from .kafka_reference import KafkaReference
from .reference_files import read_log

if TYPE_CHECKING:
    from collections.abc import Iterator

READS_PER_LOG = 3
_ROOM = 1 << 28
_SHOWN = 10
_SHOWN_CHARACTERS = 300
_COLUMNS = tuple(name for name in RECORD_SCHEMA.names if name != "is_aborted")
_COLUMN_SETS: tuple[tuple[str, ...], ...] = (
    _COLUMNS,
    _COLUMNS,
    ("offset",),
    ("offset", "timestamp"),
    ("key",),
    ("value", "offset"),
    ("headers",),
    ("headers", "key", "position_bytes"),
    ("key", "value", "topic"),
    ("offset", "batch_base_offset", "sequence", "is_control"),
)


class Sizes(NamedTuple):
    """The amounts that a decoder has at a time; the first are the product's own."""

    chunk_records: int = record_decoder.CHUNK_RECORDS
    chunk_bytes: int = 4 << 20
    arena_bytes: int = 4 << 20
    spare: int = 1024
    window_bytes: int = 2 << 20


_SIZES = (
    Sizes(),
    Sizes(),
    Sizes(7, 300, 2000, 8, 2000),
    Sizes(2, 50, 300, 1, 61),
    Sizes(50, 4000, 1 << 15, 8, 10_000),
    Sizes(1, 1, 100, 1, 100),
    Sizes(5, 1 << 20, 1 << 20, 100, 500),
)


@dataclass(frozen=True)
class Read:
    """The options of one read."""

    wanted: ReadOptions
    on_damage: str
    sizes: Sizes
    starting_offset: int | None = None
    ending_offset: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether it reads a part of the log."""
        return self.starting_offset is not None or self.ending_offset is not None


@dataclass
class ComparisonCounts:
    """Counts of comparisons and of differences."""

    logs: int = 0
    unclear: int = 0
    reads: int = 0
    rows: int = 0
    damages: int = 0
    refused: int = 0
    differences: list[str] = field(default_factory=list)


class Outcome(NamedTuple):
    """Rows and damage as we read them, and the error that ended the read."""

    items: list[Row | Damage]
    error: KafkaIndexError | None


def compare_log(
    reference: KafkaReference, scratch: Path, seed: int, tally: ComparisonCounts
) -> None:
    """Draw the log of a seed, and compare reads of it."""
    generated = LogGenerator(seed)
    log = draw_log(generated)
    folder = scratch / "topic-0"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    segments = []
    for base_offset, data in log.segments.items():
        path = folder / f"{base_offset:020d}.log"
        path.write_bytes(data)
        segments.append(SegmentRead(base_offset, data, read_log(reference, path)))
    if any(_ran_out_of_memory(segment) for segment in segments):
        tally.unclear += 1
        return
    tally.logs += 1
    for number in range(READS_PER_LOG):
        read = _draw_read(generated, log, segments)
        tally.reads += 1
        difference = _difference(folder, segments, read, tally)
        if difference is not None:
            tally.differences.append(f"seed {seed}, read {number}: {difference}; {read}")


def _draw_read(generated: LogGenerator, log: RandomLog, segments: list[SegmentRead]) -> Read:
    columns = generated.choice((*_COLUMN_SETS, tuple(generated.sample(_COLUMNS, 5))))
    first = min(log.segments)
    starting = ending = None
    verify_crc = generated.random() < 0.6
    if generated.random() < 0.4 and log.is_orderly and _is_ascending(segments):
        highest = max([first, *(_last_offsets(segments))]) + 2
        starting, ending = sorted(generated.randrange(first, highest + 1) for _ in range(2))
        starting = starting if generated.random() < 0.7 else None
        ending = ending if generated.random() < 0.7 else None
    room = generated.choice((_ROOM, _ROOM, 20_000, 500))
    if any(_has_unclear_size(segment, room) for segment in segments):
        room = _ROOM
    wanted = ReadOptions(
        columns,
        first if starting is None else starting,
        2**63 - 1 if ending is None else ending - 1,
        include_control=generated.random() < 0.5,
        verify_crc=verify_crc,
        max_decompressed_bytes=room,
    )
    on_damage = generated.choice(("failfast", "permissive", "permissive", "drop"))
    return Read(wanted, on_damage, generated.choice(_SIZES), starting, ending)


def _ran_out_of_memory(segment: SegmentRead) -> bool:
    """Whether an answer of Kafka's is its heap's: it allocates what a wrong length asks for."""
    return any(
        batch.magic < 2 and batch.fault == "OutOfMemoryError" for batch in segment.log.batches
    )


def _has_unclear_size(segment: SegmentRead, room: int) -> bool:
    """Whether messages may need more than that, of which Kafka returns only a part."""
    return any(
        batch.magic < 2
        and is_compressed(segment.data, batch)
        and sum(record.size_bytes for record in batch.records) <= room < _ROOM
        for batch in segment.log.batches
    )


def _last_offsets(segments: list[SegmentRead]) -> Iterator[int]:
    for segment in segments:
        for batch in segment.log.batches:
            yield header_last_offset(segment.data, batch)


def _is_ascending(segments: list[SegmentRead]) -> bool:
    """Whether offsets rise from record to record, so that bounds have a meaning."""
    offsets: list[int] = []
    for segment in segments:
        offsets.append(segment.base_offset - 1)
        for batch in segment.log.batches:
            own = [record.offset for record in batch.records]
            last = header_last_offset(segment.data, batch)
            first = batch.base_offset
            if first is None or first > last or any(not first <= one <= last for one in own):
                return False
            if first <= offsets[-1]:
                return False
            offsets += [*own, last]
    return all(a <= b for a, b in pairwise(offsets))


def _difference(
    folder: Path, segments: list[SegmentRead], read: Read, tally: ComparisonCounts
) -> str | None:
    expected = list(expected_rows(segments, read.wanted))
    outcome = _outcome(folder, read)
    tally.rows += sum(not isinstance(one, Damage) for one in outcome.items)
    tally.damages += sum(isinstance(one, Damage) for one in expected)
    if outcome.error is None:
        return _difference_of_rows(outcome.items, expected, read)
    tally.refused += 1
    if read.on_damage != "failfast":
        return f"raised {outcome.error}"
    return _difference_of_error(outcome, expected, read)


def _difference_of_rows(
    found: list[Row | Damage], expected: list[Row | Damage], read: Read
) -> str | None:
    damages = _damages_of(expected)
    if read.on_damage == "failfast" and damages and not read.is_bounded:
        return f"nothing was raised, and Kafka throws at {damages[0]}"
    if read.on_damage == "permissive" and not read.is_bounded:
        return _first_difference(found, expected)
    # Which damage lies in the way of bounds depends on the indexes.
    extra = [one for one in _damages_of(found) if one not in damages]
    if extra:
        return f"damage that Kafka does not find: {extra}"
    return _first_difference(_rows_of(found), _rows_of(expected))


def _difference_of_error(outcome: Outcome, expected: list[Row | Damage], read: Read) -> str | None:
    damages = _damages_of(expected)
    error = outcome.error
    assert error is not None
    if read.is_bounded and error.message.startswith("bad_crc"):
        # Where the bounds are is looked up in indexes, and none is built of an invalid batch.
        return _first_difference(outcome.items, [])
    if not damages:
        return f"raised {error}, and Kafka reads all"
    if read.is_bounded:
        before = _rows_of(expected)
    else:
        before = _rows_of(expected[: expected.index(damages[0])])
        if (int(Path(str(error.path)).stem), error.position_bytes) != damages[0]:
            return f"raised {error}, and Kafka throws at {damages[0]}"
    return _first_difference(outcome.items, before[: len(outcome.items)])


def _damages_of(items: list[Row | Damage]) -> list[Damage]:
    return [one for one in items if isinstance(one, Damage)]


def _rows_of(items: list[Row | Damage]) -> list[Row | Damage]:
    return [one for one in items if not isinstance(one, Damage)]


def _first_difference(found: list[Row | Damage], wanted: list[Row | Damage]) -> str | None:
    if found == wanted:
        return None
    for number, (ours, kafkas) in enumerate(zip(found, wanted, strict=False)):
        if ours != kafkas:
            return (
                f"row {number} of {len(found)} is {_short(ours)}, Kafka's of {len(wanted)} is"
                f" {_short(kafkas)}"
            )
    longer = found if len(found) > len(wanted) else wanted
    one = longer[min(len(found), len(wanted))]
    return f"{len(found)} rows, Kafka has {len(wanted)}; the next is {_short(one)}"


def _short(one: object) -> str:
    return str(one)[:_SHOWN_CHARACTERS]


def _outcome(folder: Path, read: Read) -> Outcome:
    items: list[Row | Damage] = []
    wanted = read.wanted
    with ExitStack() as stack:
        _set_sizes(stack, read.sizes)
        try:
            columns = wanted.columns
            if read.on_damage == "permissive" and "position_bytes" not in columns:
                columns = (*columns, "position_bytes")
            reader = kafka_index.read_records(
                folder,
                columns=columns,
                include_control=wanted.include_control,
                verify_crc=wanted.verify_crc,
                on_damage=read.on_damage,
                max_decompressed_bytes=wanted.max_decompressed_bytes,
                starting_offsets=read.starting_offset,
                ending_offsets=read.ending_offset,
            )
            for batch in reader:
                items += _items(batch, wanted.columns)
        except KafkaIndexError as error:
            return Outcome(items, error)
    return Outcome(items, None)


def _items(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[Row | Damage]:
    batch.validate(full=True)
    lists = []
    for name in columns:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        lists.append(column.to_pylist())
    rows: list[Row] = list(zip(*lists, strict=True))
    if CORRUPT_RECORD not in batch.schema.names:
        yield from rows
        return
    reasons = batch.column(CORRUPT_RECORD).to_pylist()
    positions = batch.column("position_bytes").to_pylist()
    for row, reason, position in zip(rows, reasons, positions, strict=True):
        if reason is None:
            yield row
        else:
            # Its path is that of the segment.
            name = reason.split(".log", 1)[0].rsplit("/", 1)[1]
            yield Damage(int(name), position)


def _set_sizes(stack: ExitStack, sizes: Sizes) -> None:
    for target, name, value in (
        (record_decoder, "_CHUNK_BYTES", sizes.chunk_bytes),
        (record_decoder, "_ARENA_BYTES", sizes.arena_bytes),
        (record_decoder, "_MIN_SPARE", sizes.spare),
        (range_scan, "_LOCAL_WINDOW_BYTES", sizes.window_bytes),
    ):
        stack.enter_context(patch.object(target, name, value))
    defaults = dict(record_decoder.RecordDecoder.__init__.__kwdefaults__ or {})
    defaults["chunk_records"] = sizes.chunk_records
    stack.enter_context(
        patch.object(record_decoder.RecordDecoder.__init__, "__kwdefaults__", defaults)
    )


def main() -> int:
    """Run the campaign and print what differed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=0, help="of the first log")
    options.add_argument("--count", type=int, default=200, help="how many logs")
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    tally = ComparisonCounts()
    start, shown, consumed = time.monotonic(), 0, 0
    memory = Path("/dev/shm")  # noqa: S108
    with KafkaReference() as reference, tempfile.TemporaryDirectory(dir=memory) as scratch:
        for seed in range(given.seed, given.seed + given.count):
            compare_log(reference, Path(scratch), seed, tally)
            try:
                consumed += compare_with_consumer(reference, Path(scratch), seed)
            except AssertionError as failure:
                tally.differences.append(str(failure))
            for difference in tally.differences[shown:_SHOWN]:
                print(difference, flush=True)
            shown = len(tally.differences)
    print(
        f"{tally.logs} logs from seed {given.seed}, {tally.reads} reads, {tally.rows} rows,"
        f" {consumed} records as consumed,"
        f" {tally.damages} places where Kafka throws, {tally.refused} reads refused,"
        f" {len(tally.differences)} differences, {time.monotonic() - start:.0f} s"
    )
    return 1 if tally.differences else 0


if __name__ == "__main__":
    sys.exit(main())
