"""Arrow batches as text: aligned columns for people, JSON lines for programs.

Both are made column by column with Arrow's own kernels: a 2 GiB log can hold 25 million batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

_GAP = "  "
_NULL = "-"


class AlignedRows:
    """Turns the batches of one stream into lines of a table.

    Widths are those of the widest cell so far, so the table may widen from one batch to the
    next, but no column is ever cut.
    """

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield the header, before the first batch, and a line per row."""
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


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield a JSON object per row, nulls included."""
    parts: list[pa.Array | pa.Scalar] = []
    for number, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        parts += [pa.scalar(("{" if number == 0 else ", ") + json.dumps(name) + ": ")]
        parts += [_json_values(column)]
    parts.append(pa.scalar("}"))
    yield from pc.binary_join_element_wise(*parts, "").to_pylist()


def _json_values(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return pc.fill_null(column.cast(pa.string()), "null")
    encoded = column.dictionary_encode()
    texts = pa.array([json.dumps(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return pc.fill_null(texts.take(encoded.indices), "null")
