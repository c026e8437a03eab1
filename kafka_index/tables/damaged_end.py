"""The end of a log whose last segment is damaged, which an index may hide from a broker."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.errors import CorruptLogError
from kafka_index.reading import PartitionLog
from kafka_index.tables.range_scan import LogRange, RangeScan


@dataclass(frozen=True, slots=True)
class DamagedEnd:
    """The end of a damaged log, with its first damage.

    The sound offset comes after the last batch before the damage, the end offset after the last
    batch that can be read.
    """

    sound_offset: int
    end_offset: int
    error: CorruptLogError


def damaged_end(log: PartitionLog) -> DamagedEnd | None:
    """Return the end of a log whose last segment is damaged at its end, None for any other.

    Damage before the last index entry does not hide the end, and is found by reading it. Raises
    `KafkaIndexError` if the last segment cannot be read.
    """
    last = log.segments[-1]
    stop = last.damage
    if stop is None:
        return None
    whole = LogRange(last.file, 0, last.file.log_size_bytes, last.base_offset, last.base_offset)
    error = None
    sound = end = max(last.base_offset, log.log_start_offset)
    for found in RangeScan(whole, verify_crc=True).windows():
        if isinstance(found, CorruptLogError):
            error = error or found
            continue
        end = max(end, int(found.batches.last_offset[-1]) + 1)
        sound = sound if error else end
    if error is None:
        path, position = last.file.log_path, stop.position_bytes
        error = CorruptLogError(stop.text, path=path, position_bytes=position)
    return DamagedEnd(sound, end, error)
