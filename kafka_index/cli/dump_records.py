"""Dump of the records of a ``.log``: a line per record, decompressed batch by batch."""

from __future__ import annotations

import os

from kafka_index.cli.dump_log import log_end
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.record_text import BatchPlace, RecordText
from kafka_index.cli.text import format_count, plural
from kafka_index.errors import CorruptLogError, KafkaIndexError, TooLargeError
from kafka_index.layout.records import (
    CONTROL_MASK,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.records.batch_source import TOO_LARGE
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_decoding import FIELD_FAULT, open_records
from kafka_index.scan import LogFileSource
from kafka_index.storage import Bytes


def dump_records(
    path: str,
    base_offset: int,
    output: DumpOutput,
    text: RecordText,
    *,
    verify_crc: bool,
    budget: DecompressionBudget,
) -> KafkaIndexError | None:
    """Print the records of a log.

    Returns
    -------
    KafkaIndexError or None
        The first damage. The dump continues after a batch whose records cannot be read.
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
            printed, fault = _dump_batch(position, batch, output, text, budget)
            count += printed
            if fault is not None:
                word = "damaged"
                if isinstance(fault, TooLargeError):
                    word = TOO_LARGE
                    output.write(text.refusal(position, TOO_LARGE))
                output.remark(f"{word}: the batch at byte {position}: {fault.message}", bad=True)
                damage = damage or type(fault)(
                    fault.message,
                    path=path,
                    position_bytes=position,
                    expected=fault.expected,
                    found=fault.found,
                    hint=fault.hint,
                )
    end = log_end(path, size_bytes, source.stop, plural(count, "record"), output)
    return damage or end


def _dump_batch(
    position: int,
    batch: Bytes,
    output: DumpOutput,
    text: RecordText,
    budget: DecompressionBudget,
) -> tuple[int, CorruptLogError | None]:
    """Return how many records were printed, and why there are no more."""
    printed = 0
    try:
        with open_records(batch, budget) as records:
            place = _place(position, batch)
            for chunk in records.chunks():
                readable = chunk.readable()
                output.write(text.lines(place, readable))
                printed += len(readable)
                if len(readable) < len(chunk):
                    return printed, CorruptLogError(FIELD_FAULT)
            return printed, None if records.fault is None else CorruptLogError(records.fault)
    except CorruptLogError as error:
        return printed, error


def _place(position: int, batch: Bytes) -> BatchPlace:
    if int(batch[MAGIC_POSITION].view("i1")) < MAGIC_RECORD_BATCH:
        return BatchPlace(position)
    header = batch[:RECORD_BATCH_OVERHEAD_BYTES].view(RECORD_BATCH_HEADER)[0]
    return BatchPlace(
        position,
        base_offset=int(header["base_offset"]),
        producer_id=int(header["producer_id"]),
        producer_epoch=int(header["producer_epoch"]),
        base_sequence=int(header["base_sequence"]),
        is_control=bool(header["attributes"] & CONTROL_MASK),
    )
