"""Small text files written by users: offsets and keys."""

from __future__ import annotations

from pathlib import Path

from kafka_index.core.errors import InputError
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import is_remote


def read_text(path: str, what: str) -> str:
    """Read UTF-8 text with line feeds as line ends; `what` describes the file in errors.

    The path is a URI, a local file or a pipe. A byte order mark, as written by Windows editors, is
    removed. Raises `InputError` if the file cannot be read.
    """
    try:
        # Local files are read directly, which allows pipes and gives specific errors.
        data = store_of(path).read(path) if is_remote(path) else Path(path).read_bytes()
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise InputError(f"cannot read {what}: no such file", path=path) from error
    except OSError as error:
        raise InputError(f"cannot read {what}: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        # Error positions exclude the byte order mark.
        at = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, at) + 1
        raise InputError(
            f"line {line} of {what} is not UTF-8",
            path=path,
            position_bytes=at,
            found=f"0x{data[at]:02x}",
        ) from error
