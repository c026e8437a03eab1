"""Arrays of large strings, put together of others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()


def join_texts(
    pieces: list[pa.Array | str], *, separator: str = "", null: str | None = ""
) -> pa.Array:
    """Return texts that are put together of others, row by row.

    Parameters
    ----------
    pieces : list of Array of large strings, or str
        What stands behind one another; at least one array.
    separator : str
        What stands between them.
    null : str, optional
        What stands for null; None: a row with one is null.
    """
    return pc.binary_join_element_wise(
        *(pa.scalar(piece, TEXT) if isinstance(piece, str) else piece for piece in pieces),
        pa.scalar(separator, TEXT),
        null_handling="emit_null" if null is None else "replace",
        null_replacement=null or "",
    )


def text_bytes(texts: pa.Array) -> memoryview:
    """Return large strings as one text: they lie behind one another in memory."""
    if not len(texts):
        return memoryview(b"")
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, offset=8 * texts.offset)
    return memoryview(texts.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
