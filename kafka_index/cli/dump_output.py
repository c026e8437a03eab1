"""The output of a dump: rows and remarks for people, or rows alone as JSON lines.

Both are made column by column with Arrow's kernels: a 2 GiB log can hold 25 million batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TextIO

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.cli.text import Paint
from kafka_index.errors import KafkaIndexError
from kafka_index.storage.json_lines import json_lines

_LINES_AT_A_TIME = 8192
_GAP = "  "
_NULL = "-"
_WRITE_CHARS = 64 * 1024


class DumpOutput:
    """Prints the rows of one file after another.

    Parameters
    ----------
    stream : TextIO
        Usually stdout.
    as_json : bool
        Print rows as JSON objects, and nothing else.
    """

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self.as_json = as_json
        self._paint = Paint(stream)
        self._rows = AlignedRows()
        self._files = 0

    def begin(self, title: str) -> None:
        """Print the title of a file."""
        self._rows = AlignedRows()
        if not self.as_json:
            if self._files:
                self._stream.write("\n")
            self._stream.write(self._paint.strong(title) + "\n")
        self._files += 1

    def rows(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        for start in range(0, batch.num_rows, _LINES_AT_A_TIME):
            part = batch.slice(start, _LINES_AT_A_TIME)
            lines = json_lines(part).to_pylist() if self.as_json else self._rows.lines(part)
            self._stream.write("\n".join(lines) + "\n")

    def write(self, pieces: Iterable[str]) -> None:
        """Write rows that are already text, in pieces, line ends included."""
        waiting: list[str] = []
        size = 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= _WRITE_CHARS:
                self._stream.write("".join(waiting))
                waiting.clear()
                size = 0
        self._stream.write("".join(waiting))

    def fault(self, fault: KafkaIndexError | None) -> None:
        """Print a remark about the fault of a file, if it has one."""
        if fault is not None:
            place = "" if fault.position_bytes is None else f" at byte {fault.position_bytes}"
            self.remark(f"damaged{place}: {fault.message}", bad=True)

    def remark(self, text: str, *, bad: bool = False) -> None:
        """Print a line about the file, unless the output is JSON."""
        if not self.as_json:
            self._stream.write((self._paint.bad if bad else self._paint.faint)(text) + "\n")


class AlignedRows:
    """Formats the batches of one file as a table.

    A column is as wide as its widest cell so far: the table may widen from one batch to the next,
    but no cell is cut.
    """

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield a line per row, and the header before the first batch."""
        first = not self._widths
        cells = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            texts = pc.fill_null(column.cast(pa.string()), _NULL)
            longest = pc.max(pc.utf8_length(texts)).as_py() or 0
            width = max(self._widths.get(name, len(name)), longest)
            self._widths[name] = width
            cells.append(pc.utf8_lpad(texts, width))
        if first:
            yield _GAP.join(name.rjust(width) for name, width in self._widths.items())
        yield from pc.binary_join_element_wise(*cells, _GAP).to_pylist()
