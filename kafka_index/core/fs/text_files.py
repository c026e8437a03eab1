"""Reading the small text files that users write: offsets, and keys."""

from __future__ import annotations

from pathlib import Path

from kafka_index.core.errors import InputError
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import is_remote


def read_text(path: str, what: str) -> str:
    """Return a text in UTF-8, whose lines end in a line feed; `what` names the file in errors.

    The path is a URI, or that of a local file or pipe. A byte order mark, with which editors on
    Windows begin a file, is no part of the text. Raises `InputError` if it cannot be read.
    """
    try:
        # A local one is read as it is, also a pipe, and errors say what it is for.
        data = store_of(path).read(path) if is_remote(path) else Path(path).read_bytes()
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise InputError(f"cannot read {what}: no such file", path=path) from error
    except OSError as error:
        raise InputError(f"cannot read {what}: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        # Positions of the error do not count the byte order mark.
        at = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, at) + 1
        raise InputError(
            f"line {line} of {what} is not UTF-8",
            path=path,
            position_bytes=at,
            found=f"0x{data[at]:02x}",
        ) from error
