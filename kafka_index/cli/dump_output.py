"""Where a dump goes: rows and remarks on stdout for people, rows alone as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

import pyarrow as pa

from kafka_index.cli.arrow_text import AlignedRows, json_lines
from kafka_index.cli.text import Paint

_LINES_AT_A_TIME = 8192


class DumpOutput:
    """Writes the rows of one file after another.

    Parameters
    ----------
    stream : TextIO
        Usually stdout.
    as_json : bool
        Rows as JSON objects and nothing else.
    """

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self.as_json = as_json
        self._paint = Paint(stream)
        self._rows = AlignedRows()
        self._files = 0

    def begin(self, title: str) -> None:
        """Begin a file."""
        self._rows = AlignedRows()
        if not self.as_json:
            if self._files:
                self._stream.write("\n")
            self._stream.write(self._paint.strong(title) + "\n")
        self._files += 1

    def rows(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        for start in range(0, batch.num_rows, _LINES_AT_A_TIME):
            part = batch.slice(start, _LINES_AT_A_TIME)
            lines = json_lines(part) if self.as_json else self._rows.lines(part)
            self._stream.write("\n".join(lines) + "\n")

    def lines(self, lines: Iterable[str]) -> None:
        """Write rows that are text already, as they are made."""
        for line in lines:
            self._stream.write(line + "\n")

    def remark(self, text: str, *, bad: bool = False) -> None:
        """Write a line about the file, for people only."""
        if not self.as_json:
            self._stream.write((self._paint.bad if bad else self._paint.faint)(text) + "\n")
