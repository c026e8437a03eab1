"""Text files of queries, read as UTF-8 and decompressed, block by block."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from kafka_index.errors import InputError


def text_blocks(path: str, block_bytes: int) -> Iterator[str]:
    """Yield the text of a file in blocks, decompressed, without a byte order mark.

    No block is empty. Bytes that are not UTF-8 are replaced by U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    with pa.input_stream(path, compression="detect") as stream:
        while data := stream.read(block_bytes):
            if text := decoder.decode(data):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text


@contextmanager
def errors_of(path: str) -> Iterator[None]:
    """Raise what is wrong with a file as an InputError that names it."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot read the queries: {error.strerror or error}", path=path
        ) from error
