"""Dump of the records of a ``.log``: a line per record, decompressed batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kafka_index.cli.dump_files import DumpedFile
from kafka_index.cli.dump_log import log_end, out_of_order
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.dump_selection import Selection
from kafka_index.cli.printed_records import PrintedRecords
from kafka_index.cli.record_text import RecordText
from kafka_index.cli.text import format_count, plural
from kafka_index.errors import KafkaIndexError, TooLargeError
from kafka_index.records.batch_table import TOO_LARGE, BatchColumns, ScanStop
from kafka_index.records.batch_walk import BatchDamage, RecordDecoder
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_table import WindowBatches
from kafka_index.scan import LogFileSource, read_batches
from kafka_index.scan.scanner import BatchOrder
from kafka_index.storage import Bytes


def dump_records(
    file: DumpedFile,
    output: DumpOutput,
    text: RecordText,
    *,
    verify_crc: bool,
    budget: DecompressionBudget,
) -> KafkaIndexError | None:
    """Print the records of a log; return the first damage.

    The dump continues after a batch whose records cannot be read.
    """
    path, size_bytes = file.path, file.size_bytes
    title = f"records, base offset {file.base_offset}, {format_count(size_bytes)} bytes"
    output.begin(f"{path}: {title}")
    source = LogFileSource(path, verify_crc=verify_crc)
    decoder = RecordDecoder(budget, verify_crc=verify_crc)
    select = None if output.selection == Selection() else output.of_records
    count = 0
    damage: KafkaIndexError | None = None
    for window, start, found_batches in _in_order(source, file.base_offset):
        if isinstance(found_batches, ScanStop):
            error = out_of_order(path, found_batches, output)
            damage = damage or error
            continue
        held = output.selection.of_batches(found_batches)
        batches = BatchColumns(*(column[held] for column in found_batches))
        rows = WindowBatches(window, start, batches)
        convert = partial(PrintedRecords.of_chunk, source=rows)
        positions = batches.position_bytes
        for found in decoder.decode(window, positions - start, batches.size_bytes, convert):
            if not isinstance(found, BatchDamage):
                output.write(text.lines(found, select))
                count += len(found)
                if output.is_full:
                    output.limited()
                    return damage
                continue
            position, error = int(positions[found.batch]), found.error
            word = "damaged"
            if isinstance(error, TooLargeError):
                word = TOO_LARGE
                output.write(text.refusal(position, TOO_LARGE))
            output.remark(f"{word}: the batch at byte {position}: {error.message}", bad=True)
            damage = damage or error.at(path, position)
        if found_batches.rows and output.selection.is_past(int(found_batches.last_offset[-1])):
            output.remark(f"{plural(output.printed, 'record')} at the offset")
            return damage
    if output.selection.has_times and not output.printed:
        for headers in read_batches(path, verify_crc=False):
            output.follow_times(headers)
    found_text = plural(count, "record")
    if select is not None:
        found_text = f"{plural(output.printed, 'record')} selected"
    end = log_end(path, size_bytes, source.stop, found_text, output)
    return damage or end


def _in_order(
    source: LogFileSource, base_offset: int
) -> Iterator[tuple[Bytes, int, BatchColumns | ScanStop]]:
    """Yield the windows of a log, with batches that are in order, or why some are left out."""
    order = BatchOrder(base_offset)
    for window, start, batches in source.windows():
        for found in order.follow(batches):
            yield window, start, found
