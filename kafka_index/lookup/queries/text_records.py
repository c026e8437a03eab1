"""Texts as records, read block by block: JSON lines, and CSV, whose records may span lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.errors import InputError

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

BLOCK_BYTES = 16 << 20
#: A longer record is no record but a quote that nobody closed, or no text at all.
MOST_RECORD_BYTES = 256 << 20

_NEWLINE, _QUOTE, _COMMA, _RETURN = b'\n",\r'
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole records of a text.

    Parameters
    ----------
    data : ndarray of uint8
        Their bytes.
    ends : ndarray of int64
        Where each ends, its line end included.
    first_line : int
        Line number of the first one, from 1.
    quoted : bool
        Whether there are quotes among them that were looked at.
    """

    data: Bytes
    ends: Longs
    first_line: int
    quoted: bool

    @property
    def records(self) -> pa.Array:
        """The records as an array of large strings, line ends included; UTF-8 is not checked."""
        offsets = np.concatenate((np.zeros(1, np.int64), self.ends))
        return pa.LargeStringArray.from_buffers(
            len(self.ends), pa.py_buffer(offsets), pa.py_buffer(self.data)
        )

    def line_of(self, record: int) -> int:
        """Return the number of the line where a record starts."""
        start = 0 if record == 0 else int(self.ends[record - 1])
        return self.first_line + int(np.count_nonzero(self.data[:start] == _NEWLINE))


@contextmanager
def open_text(path: str) -> Iterator[pa.NativeFile]:
    """Open a text for reading, decompressed where its name says so.

    Raises
    ------
    InputError
        It cannot be read; also later, while it is read.
    """
    try:
        with pa.input_stream(path, compression="detect") as stream:
            yield stream
    except OSError as error:
        raise InputError(
            f"cannot read the queries: {error.strerror or error}", path=path
        ) from error


def read_blocks(stream: pa.NativeFile, path: str, *, quotes: bool) -> Iterator[TextBlock]:
    """Read a text in blocks of whole records, without a byte order mark.

    Parameters
    ----------
    stream : pa.NativeFile
        From `open_text`.
    path : str
        For errors.
    quotes : bool
        Whether a record goes on where a line ends between quotes (RFC 4180).

    Raises
    ------
    InputError
        A quote stands where none may, or is never closed; a record is too long.
    """
    left, line = b"", 1
    while True:
        more = stream.read(BLOCK_BYTES)
        if line == 1 and not left:
            more = more.removeprefix(_BOM)
        at_end = not more
        text = left + more
        if not text:
            return
        data = np.frombuffer(text, np.uint8)
        ends, quoted = _record_ends(data, quotes=quotes)
        if at_end and (not len(ends) or ends[-1] != len(data)):
            ends = np.append(ends, len(data))
        if len(ends):
            block = TextBlock(data[: ends[-1]], ends, line, quoted)
            if quoted:
                _check_quotes(block, path)
            line += int(np.count_nonzero(block.data == _NEWLINE))
            left = text[ends[-1] :]
            yield block
        elif len(text) > MOST_RECORD_BYTES:
            raise InputError(
                f"a record of more than {MOST_RECORD_BYTES} bytes begins in line {line}",
                path=path,
                hint="is a quote not closed?" if quotes else "is this text?",
            )
        else:
            left = text
        if at_end:
            return


def without_line_ends(records: pa.Array) -> pa.Array:
    """Return records without the ends of their lines."""
    return pc.ascii_rtrim(records, "\r\n")


def _record_ends(data: Bytes, *, quotes: bool) -> tuple[Longs, bool]:
    ends = np.flatnonzero(data == _NEWLINE)
    marks = np.flatnonzero(data == _QUOTE) if quotes else ends[:0]
    if len(marks):
        # Between quotes lies what has an odd number of them before it: a doubled one adds two.
        ends = ends[np.searchsorted(marks, ends) % 2 == 0]
    return ends + 1, len(marks) > 0


def _check_quotes(block: TextBlock, path: str) -> None:
    """Refuse quotes that do not surround a cell: which they surround instead is anyone's guess."""
    data, marks = block.data, np.flatnonzero(block.data == _QUOTE)
    if len(marks) % 2:
        raise _bad_quote(block, int(marks[-1]), path, "a quote that is never closed")
    opening, closing = marks[::2], marks[1::2]
    before = data[np.maximum(opening - 1, 0)]
    starts_cell = (opening == 0) | (before == _COMMA) | (before == _NEWLINE)
    starts_cell[1:] |= opening[1:] == closing[:-1] + 1  # a doubled one, which is no start either
    behind = data[np.minimum(closing + 1, len(data) - 1)]
    ends_cell = (closing == len(data) - 1) | np.isin(behind, (_COMMA, _NEWLINE, _RETURN, _QUOTE))
    wrong = ~(starts_cell & ends_cell)
    if wrong.any():
        at = int(opening[np.argmax(wrong)])
        raise _bad_quote(block, at, path, "a quote that does not surround a cell")


def _bad_quote(block: TextBlock, at: int, path: str, what: str) -> InputError:
    line = block.first_line + int(np.count_nonzero(block.data[:at] == _NEWLINE))
    return InputError(
        f"{what} in line {line}",
        path=path,
        hint="surround cells that hold quotes with quotes, and double those inside",
    )
