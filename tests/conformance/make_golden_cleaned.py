"""Write partitions before and after Kafka's own cleaner has been over half of them.

The old formats are those of 3.9.1, whose builders and cleaner keep them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.missing_offsets import BATCHES, LOGS, SPAN, CleanedLogs, write_cleaned_logs

from .judged_files import WrittenBatch, WrittenRecord, write_batches
from .judged_log import load
from .kafka_jars import DEFAULT_VERSION
from .written_segments import CODECS, START_MS

if TYPE_CHECKING:
    from .judge import Judge

#: Records whose keys come again below the offset that is cleaned: parts of batches, a whole batch,
#: and those on both sides of the end of the first log.
REMOVED = (5, 6, *range(8, 12), *range(20, 28), 33)
_KEPT = range(36, 44)
_UNCLEANABLE = LOGS // 2 * BATCHES * SPAN


def write_golden_cleaned(judge: Judge) -> None:
    """Write the table."""
    write_cleaned_logs(cleaned_by(judge))


def cleaned_by(judge: Judge) -> list[CleanedLogs]:
    """A partition of each magic and codec, cleaned by a judge's version of Kafka."""
    return [_cleaned(judge, magic, codec) for magic, codecs in CODECS.items() for codec in codecs]


def _cleaned(judge: Judge, magic: int, codec: str) -> CleanedLogs:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "orders-0"
        directory.mkdir()
        for log in range(LOGS):
            base = log * BATCHES * SPAN
            batches = [_batch(base + i * SPAN, magic, codec) for i in range(BATCHES)]
            write_batches(judge, directory / f"{base:020d}.log", batches)
        before = _contents(directory)
        # Segments that fit in one are joined.
        size = min(map(len, before.values()))
        name = "internal.segment.bytes" if judge.version == DEFAULT_VERSION else "segment.bytes"
        settings = {name: size, "cleanup.policy": "compact"}
        with load(judge, directory, settings=settings) as opened:
            cleaned_to, _ = opened.clean(_UNCLEANABLE)
        return CleanedLogs(magic, codec, cleaned_to, before, _contents(directory))


def _batch(base: int, magic: int, codec: str) -> WrittenBatch:
    records = tuple(
        WrittenRecord(offset, START_MS + offset, _key(offset), b"value %d" % offset)
        for offset in range(base, base + SPAN)
    )
    return WrittenBatch(records, magic=magic, codec=codec)


def _key(offset: int) -> bytes:
    if offset in REMOVED:
        offset = _KEPT[REMOVED.index(offset) % len(_KEPT)]
    return b"key %d" % offset


def _contents(directory: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in sorted(directory.glob("*.log"))}
