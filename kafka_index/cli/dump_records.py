"""Dump of the records of a ``.log``: a line per record, unpacked batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kafka_index.cli.dump_log import log_end
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.record_text import RecordPlace, RecordText
from kafka_index.cli.text import format_count, plural
from kafka_index.errors import CorruptLogError, KafkaIndexError
from kafka_index.layout.index_entries import INT32_MAX
from kafka_index.layout.records import (
    CONTROL_MASK,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.records.record_contents import read_contents
from kafka_index.records.record_decoding import BatchRecords, read_records
from kafka_index.scan import LogFileSource
from kafka_index.storage import Bytes


def dump_records(
    path: str, base_offset: int, output: DumpOutput, text: RecordText, *, verify_crc: bool
) -> KafkaIndexError | None:
    """Print the records of a log.

    Parameters
    ----------
    path : str
        The log.
    base_offset : int
        From its name.
    output : DumpOutput
        Where to.
    text : RecordText
        Turns them into lines.
    verify_crc : bool
        Whether to check each batch's checksum.

    Returns
    -------
    KafkaIndexError or None
        The first damage. A batch whose records cannot be read is no end; the next is found.
    """
    size_bytes = os.path.getsize(path)
    output.begin(f"{path}: records, base offset {base_offset}, {format_count(size_bytes)} bytes")
    source = LogFileSource(path, verify_crc=verify_crc)
    count = 0
    damage: KafkaIndexError | None = None
    for window, start, batches in source.windows():
        sizes = batches.size_bytes.tolist()
        for position, size in zip(batches.position_bytes.tolist(), sizes, strict=True):
            batch = window[position - start : position - start + size]
            try:
                records = read_records(batch)
                count += len(records)
                output.lines(_lines(position, batch, records, text))
                fault = None if records.fault is None else CorruptLogError(records.fault)
            except CorruptLogError as error:
                fault = error
            if fault is not None:
                output.remark(f"damaged: the batch at byte {position}: {fault.message}", bad=True)
                damage = damage or CorruptLogError(
                    fault.message,
                    path=path,
                    position_bytes=position,
                    expected=fault.expected,
                    found=fault.found,
                )
    end = log_end(path, size_bytes, source.stop, plural(count, "record"), output)
    return damage or end


def _lines(position: int, batch: Bytes, records: BatchRecords, text: RecordText) -> Iterator[str]:
    producer_id, producer_epoch, base_sequence = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    base_offset = 0
    is_control = False
    if int(batch[MAGIC_POSITION : MAGIC_POSITION + 1].view("i1")[0]) >= MAGIC_RECORD_BATCH:
        header = batch[:RECORD_BATCH_OVERHEAD_BYTES].view(RECORD_BATCH_HEADER)[0]
        producer_id, producer_epoch = int(header["producer_id"]), int(header["producer_epoch"])
        base_sequence, base_offset = int(header["base_sequence"]), int(header["base_offset"])
        is_control = bool(header["attributes"] & CONTROL_MASK)
    rows = zip(
        records.offsets.tolist(),
        records.timestamps_ms.tolist(),
        read_contents(batch, len(records)),
        strict=True,
    )
    for offset, timestamp_ms, content in rows:
        sequence = _sequence(base_sequence, offset - base_offset)
        place = RecordPlace(
            position, offset, timestamp_ms, producer_id, producer_epoch, sequence, is_control
        )
        yield from text.lines(place, content)


def _sequence(base_sequence: int, offset_delta: int) -> int:
    """Return the sequence of a record; after 2^31 - 1 comes 0 (incrementSequence)."""
    return (base_sequence + offset_delta) % (INT32_MAX + 1) if base_sequence >= 0 else NO_SEQUENCE
