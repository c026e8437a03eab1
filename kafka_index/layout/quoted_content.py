"""Content of a dump's small text files in messages: bounded, and never that of a linked file."""

from __future__ import annotations

import os

from kafka_index.layout.names import split_directory_name

_QUOTED_CHARACTERS = 60


def quote_content(text: str | bytes, path: str | os.PathLike[str] | None) -> str:
    """Return the quotation of a malformed text, such as a line, from a file.

    A link may lead to any file of the machine, which whoever made the dump could not read: nothing
    of it is shown, nor of a file in a partition directory that is a link.
    """
    if path is not None and is_linked(os.fspath(path)):
        return "[not shown: the file is a link]"
    if len(text) <= _QUOTED_CHARACTERS:
        return repr(text)
    return f"{text[:_QUOTED_CHARACTERS]!r}... ({len(text)} characters)"


def is_linked(path: str) -> bool:
    """Return whether a file, or the partition directory that holds it, is a link."""
    directory = os.path.dirname(path)
    is_partition = split_directory_name(os.path.basename(directory)) is not None
    return os.path.islink(path) or (is_partition and os.path.islink(directory))
