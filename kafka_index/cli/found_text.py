"""Records that were found, as text: those of ``dump --records``, with their partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from kafka_index.cli.decoded_records import decoder_of_topic
from kafka_index.cli.printed_records import NUMBER_COLUMNS, PrintedRecords, Row
from kafka_index.cli.record_text import RecordText, decoded_text, readable_time
from kafka_index.cli.shown_bytes import NONE, TEXT
from kafka_index.errors import printable

#: What has to be read of each record.
FOUND_COLUMNS = ("topic", "partition", *NUMBER_COLUMNS, "key", "value", "headers")
_GAP = "  "


class FoundText(RecordText):
    """Formats records of several partitions, as JSON objects or columns for people.

    `values` is the form of values, one of `FORMS`.
    """

    def __init__(self, *, as_json: bool, values: str) -> None:
        super().__init__(as_json=as_json, keys=TEXT, values=values)
        self._partition = ""

    def found_lines(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield the lines of records of one partition that have `FOUND_COLUMNS`."""
        topic, number = (rows.column(name)[0].as_py() for name in ("topic", "partition"))
        self._partition = printable(f"{topic}-{number}")
        self._decode = decoder_of_topic(topic)
        self._first_members = f'"topic": {json.dumps(topic)}, "partition": {number}, '
        return self.lines(PrintedRecords.of_rows(rows))

    def _readable(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            cells = (self._partition, str(row.offset), readable_time(row.timestamp_ms))
            header = ("partition", "offset", "timestamp")
            if not self._widths:
                widths = [max(map(len, pair)) for pair in zip(header, cells, strict=True)]
                shown = ["key", *(["value"] if self._values != NONE else [])]
                yield _GAP.join([*map(str.ljust, header, widths), *shown]) + "\n"
                self._widths = widths
            self._widths = [max(len(cell), w) for cell, w in zip(cells, self._widths, strict=True)]
            yield _GAP.join([*map(str.ljust, cells, self._widths), ""])
            if row.decoded is None:
                yield from self._cells(row)
            else:
                yield decoded_text(row.decoded)
            yield "\n"
