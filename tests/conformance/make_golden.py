"""Regenerate every golden file that ``make test`` uses: what Kafka itself leaves and answers.

    make golden

Needs what ``make conformance`` needs. Each folder has a manifest with Kafka's version, its
configuration and the SHA-256 of the files, which tests hold against the files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.core.format.checkpoints import parse_offset_checkpoint
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from tests.support.command_line import DUMP, ROOT
from tests.support.golden_segments import (
    FOUND,
    MANIFEST,
    TABLE,
    GoldenSegment,
    hashes,
    read_found_segment,
    recovered_by_build,
    write_found_segment,
    write_table,
)
from tests.support.missing_offsets import BATCHES, LOGS, SPAN, CleanedLogs, write_cleaned_logs
from tests.support.named_segments import NAMED
from tests.support.partitions import Row

from .features import features_of, random_segments
from .kafka_answers import SPECIAL_TIMES, offset_rows, offsets_of, time_rows, times_of
from .kafka_jars import DEFAULT_VERSION, OLD_VERSION
from .kafka_reference import DEFAULT_SEGMENT_INDEX_BYTES, KafkaReference
from .recovering import recovered_by_kafka
from .reference_files import WrittenBatch, WrittenRecord, write_batches
from .reference_log import load
from .written_segments import CODECS, START_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.segments import Segment


def main() -> None:
    """Write them all."""
    with KafkaReference() as reference:
        _write_segments(reference)
        _write_lookups(reference)
    with KafkaReference(OLD_VERSION) as reference:
        write_cleaned_logs(cleaned_by(reference))


# ----------------------------------------------------------------------------- recovered segments

_SEED = 0
_RANDOM_CASES = 8000
#: The most random segments that are kept, and their bytes together.
_MAX_KEPT = 400
_MAX_BYTES = 600_000
#: So much of a segment is paid by one pair of features.
_BYTES_FOR_ONE = 150


def _write_segments(reference: KafkaReference) -> None:
    """Let Kafka recover the named segments, the found ones, and random ones with rare features."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "kafka"
        named = [
            GoldenSegment(
                case.name, case.segment, recovered_by_kafka(reference, scratch, case.segment)
            )
            for case in NAMED
        ]
        for path in sorted(FOUND.glob("*.json")):
            result = read_found_segment(path)
            kafka = recovered_by_kafka(reference, scratch, result.segment)
            write_found_segment(GoldenSegment(result.name, result.segment, kafka))
        # Our own reasons for a cut distinguish more kinds than Kafka's.
        generated = [
            (features_of(segment, recovered_by_build(scratch, segment)), segment)
            for segment in random_segments(_SEED, _RANDOM_CASES)
        ]
        kept = [
            GoldenSegment(f"generated {number}", one, recovered_by_kafka(reference, scratch, one))
            for number, one in enumerate(_chosen(generated))
        ]
    segments = [*named, *kept]
    write_table(segments)
    manifest = {
        "kafka": DEFAULT_VERSION,
        "configuration": {
            "index.interval.bytes": "index_interval_bytes of each segment",
            "segment.index.bytes": "segment_index_bytes of each segment",
            "producers and leader epochs before the segment": "none",
        },
        "random": {"seed": _SEED, "segments": _RANDOM_CASES},
        "segments": len(segments),
        "sha256": hashes(),
    }
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{len(segments)} segments, {TABLE.stat().st_size} bytes")


def _chosen(generated: list[tuple[set[str], Segment]]) -> Iterator[Segment]:
    """Those with a feature, or two together, that those before have not; small ones first."""
    seen: Counter[tuple[str, ...]] = Counter()
    count = size = 0
    for features, segment in sorted(generated, key=lambda one: len(one[1].log)):
        combined = {*((feature,) for feature in features), *combinations(sorted(features), 2)}
        new = sum(not seen[combination] for combination in combined)
        # A small segment may bring little, a large one has to be worth its bytes.
        if not new or new * _BYTES_FOR_ONE < len(segment.log):
            continue
        count, size = count + 1, size + len(segment.log)
        if count > _MAX_KEPT or size > _MAX_BYTES:
            return
        seen.update(combined)
        yield segment


# ------------------------------------------------------------------------------- answered lookups

_TARGET = ROOT / "tests" / "core" / "log" / "read" / "golden_lookups"
_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("by", pa.string(), nullable=False),
        pa.field("resolve", pa.string(), nullable=False),
        pa.field("target", pa.int64(), nullable=False),
        *ANSWER_SCHEMA,
    ]
)
#: Of each kind and partition; the special timestamps are asked besides.
_MAX_TARGETS = 240
_INDEX_INTERVAL_BYTES = 4096


def _write_lookups(reference: KafkaReference) -> None:
    """Let Kafka answer lookups at each level in the partitions of the example dump."""
    checkpoint = (DUMP / "log-start-offset-checkpoint").read_text(encoding="utf-8")
    log_starts = parse_offset_checkpoint(checkpoint)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for directory in sorted(path for path in DUMP.iterdir() if path.is_dir()):
            topic, _, number = directory.name.rpartition("-")
            log_start = log_starts.get(TopicPartition(topic, int(number)), 0)
            copy = _copy_partition(directory, Path(folder))
            rows += [
                {"topic": topic, "partition": int(number), **answer}
                for answer in _answers(reference, copy, log_start)
            ]
    _TARGET.mkdir(exist_ok=True)
    path = _TARGET / "answers.parquet"
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    pq.write_table(table, path, compression="zstd", compression_level=19)
    manifest = {
        "kafka": DEFAULT_VERSION,
        "configuration": {
            "index.interval.bytes": _INDEX_INTERVAL_BYTES,
            "segment.index.bytes": DEFAULT_SEGMENT_INDEX_BYTES,
        },
        "answers": len(rows),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "dump.sha256": hashlib.sha256(DUMP.with_suffix(".sha256").read_bytes()).hexdigest(),
    }
    (_TARGET / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{len(rows)} answers, {path.stat().st_size} bytes")


def _copy_partition(directory: Path, folder: Path) -> Path:
    """Copy what lookups read: opening changes file times, and sizes while open."""
    copy = folder / directory.name
    copy.mkdir()
    for pattern in ("*.log", "*.index", "*.timeindex", "leader-epoch-checkpoint"):
        for path in directory.glob(pattern):
            shutil.copy(path, copy)
    return copy


def _answers(
    reference: KafkaReference, directory: Path, log_start_offset: int
) -> list[dict[str, object]]:
    """Kafka's answers about a partition, at each level."""
    result: list[dict[str, object]] = []
    with reference.open_partition(
        directory,
        _INDEX_INTERVAL_BYTES,
        DEFAULT_SEGMENT_INDEX_BYTES,
        log_start_offset=log_start_offset,
    ) as kafka_log:
        offsets = offsets_of(kafka_log)
        times = times_of(kafka_log, offsets)[len(SPECIAL_TIMES) :]
        some_offsets = _thinned(offsets)
        some_times = [*SPECIAL_TIMES, *_thinned(times)]
        for resolve in Resolve:
            result += _as_dicts(
                "offset", resolve, some_offsets, offset_rows(kafka_log, some_offsets, resolve)
            )
            result += _as_dicts(
                "timestamp", resolve, some_times, time_rows(kafka_log, some_times, resolve)
            )
    return result


def _thinned(targets: list[int]) -> list[int]:
    """At most so many, evenly spread, the first and the last among them."""
    if len(targets) <= _MAX_TARGETS:
        return targets
    last = len(targets) - 1
    return [targets[i * last // (_MAX_TARGETS - 1)] for i in range(_MAX_TARGETS)]


def _as_dicts(
    by: str, resolve: Resolve, targets: list[int], rows: list[Row]
) -> list[dict[str, object]]:
    """Rows of the file."""
    return [
        {"by": by, "resolve": resolve.value, "target": target, **row._asdict()}
        for target, row in zip(targets, rows, strict=True)
    ]


# ----------------------------------------------------------------------------------- cleaned logs

#: Records whose keys come again below the offset that is cleaned: parts of batches, a whole batch,
#: and those on both sides of the end of the first log.
_REMOVED = (5, 6, *range(8, 12), *range(20, 28), 33)
_KEPT = range(36, 44)
_UNCLEANABLE = LOGS // 2 * BATCHES * SPAN


def cleaned_by(reference: KafkaReference) -> list[CleanedLogs]:
    """A partition of each magic and codec, cleaned by a reference program's version of Kafka."""
    return [
        _cleaned(reference, magic, codec) for magic, codecs in CODECS.items() for codec in codecs
    ]


def _cleaned(reference: KafkaReference, magic: int, codec: str) -> CleanedLogs:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "orders-0"
        directory.mkdir()
        for log in range(LOGS):
            base = log * BATCHES * SPAN
            batches = [_batch(base + i * SPAN, magic, codec) for i in range(BATCHES)]
            write_batches(reference, directory / f"{base:020d}.log", batches)
        before = _contents(directory)
        # Segments that fit in one are joined.
        size = min(map(len, before.values()))
        name = "internal.segment.bytes" if reference.version == DEFAULT_VERSION else "segment.bytes"
        settings = {name: size, "cleanup.policy": "compact"}
        with load(reference, directory, settings=settings) as opened:
            cleaned_to, _ = opened.clean(_UNCLEANABLE)
        return CleanedLogs(magic, codec, cleaned_to, before, _contents(directory))


def _batch(base: int, magic: int, codec: str) -> WrittenBatch:
    records = tuple(
        WrittenRecord(offset, START_MS + offset, _key(offset), b"value %d" % offset)
        for offset in range(base, base + SPAN)
    )
    return WrittenBatch(records, magic=magic, codec=codec)


def _key(offset: int) -> bytes:
    if offset in _REMOVED:
        offset = _KEPT[_REMOVED.index(offset) % len(_KEPT)]
    return b"key %d" % offset


def _contents(directory: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in sorted(directory.glob("*.log"))}


if __name__ == "__main__":
    main()
