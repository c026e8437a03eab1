"""Content of a dump's small text files in messages: bounded, and never that of a linked file."""

from __future__ import annotations

import os

_QUOTED_CHARACTERS = 60


def quote_content(text: str, path: str | os.PathLike[str] | None) -> str:
    """Return the quotation of a malformed text, such as a line, from a file.

    A link may lead to any file of the machine, which whoever made the dump could not read: nothing
    of it is shown.
    """
    if path is not None and os.path.islink(path):
        return "[not shown: the file is a link]"
    if len(text) <= _QUOTED_CHARACTERS:
        return repr(text)
    return f"{text[:_QUOTED_CHARACTERS]!r}... ({len(text)} characters)"
