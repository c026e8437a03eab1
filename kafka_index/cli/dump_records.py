"""Dump of the records of a ``.log``: a line per record, decompressed batch by batch."""

from __future__ import annotations

from functools import partial

from kafka_index.cli.dump_files import DumpedFile
from kafka_index.cli.dump_log import log_end
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.record_text import PrintedRecords, RecordText
from kafka_index.cli.text import format_count, plural
from kafka_index.errors import KafkaIndexError, TooLargeError
from kafka_index.records.batch_source import TOO_LARGE
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_decoder import BatchDamage, RecordDecoder
from kafka_index.records.record_table import WindowBatches
from kafka_index.scan import LogFileSource


def dump_records(
    file: DumpedFile,
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
    path, size_bytes = file.path, file.size_bytes
    title = f"records, base offset {file.base_offset}, {format_count(size_bytes)} bytes"
    output.begin(f"{path}: {title}")
    source = LogFileSource(path, verify_crc=verify_crc)
    decoder = RecordDecoder(budget)
    count = 0
    damage: KafkaIndexError | None = None
    for window, start, batches in source.windows():
        rows = WindowBatches(window, start, batches)
        convert = partial(PrintedRecords.of_chunk, source=rows)
        positions = batches.position_bytes
        for found in decoder.decode(window, positions - start, batches.size_bytes, convert):
            if not isinstance(found, BatchDamage):
                output.write(text.lines(found))
                count += len(found)
                continue
            position, error = int(positions[found.batch]), found.error
            word = "damaged"
            if isinstance(error, TooLargeError):
                word = TOO_LARGE
                output.write(text.refusal(position, TOO_LARGE))
            output.remark(f"{word}: the batch at byte {position}: {error.message}", bad=True)
            damage = damage or error.at(path, position)
    end = log_end(path, size_bytes, source.stop, plural(count, "record"), output)
    return damage or end
