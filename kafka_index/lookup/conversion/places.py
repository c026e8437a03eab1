"""Which line of a file a query stands in, for errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from kafka_index.errors import InputError
from kafka_index.lookup.queries.query_files import QueryFormat
from kafka_index.lookup.queries.query_piece import QueryPiece
from kafka_index.lookup.queries.text_records import open_text, read_blocks


@dataclass(frozen=True, slots=True)
class Place:
    """Where the queries of a batch stand.

    Parameters
    ----------
    piece : QueryPiece
        A text.
    first_row : int
        How many of its queries come before the batch.
    """

    piece: QueryPiece
    first_row: int

    def error(self, row: int, message: str, *, hint: str | None = None) -> InputError:
        """Return the error for a query of the batch.

        Lines are not counted while all is well, so the text is read again up to there.
        """
        where = f"line {self._line_of(row)}"
        return InputError(f"{where}: {message}", path=self.piece.path, hint=hint)

    def _line_of(self, row: int) -> int:
        is_csv = self.piece.format is QueryFormat.CSV
        wanted = self.first_row + row + is_csv  # behind the header
        with open_text(self.piece.path) as stream:
            for block in read_blocks(stream, self.piece.path, quotes=is_csv):
                records = pc.ascii_trim(block.records, "\r\n" if is_csv else " \t\r\n")
                filled = np.flatnonzero(pc.binary_length(records).to_numpy())
                if wanted < len(filled):
                    return block.line_of(int(filled[wanted]))
                wanted -= len(filled)
        raise self.piece.changed()
