"""Paths as users give them: plain paths, ``file://`` URIs and globs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from kafka_index.errors import InputError

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<host>[^/]*)|(?P<short>file:)(?=/)")


def local_path(path: str) -> str:
    """Return a user's path as a plain local path.

    Parameters
    ----------
    path : str
        A path, or a ``file:///...`` URI (percent escapes are decoded).

    Raises
    ------
    InputError
        The path is empty, of another scheme, or a ``file://`` URI of another host.
    """
    if not path:
        raise InputError("an empty path", hint="name a directory")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(
            "the path is not UTF-8, and a report could not name it",
            path=path.encode(errors="backslashreplace").decode(),
            hint="give a link to it that has another name",
        ) from None
    match = _URI.match(path)
    if match is None:
        return path
    if match["short"] is None and match["scheme"] != "file":
        raise InputError(
            f"paths of scheme {match['scheme']}:// are not supported",
            path=path,
            hint="give a local path, or mount the store and give its mount point",
        )
    if match["host"] not in (None, "", "localhost"):
        raise InputError(
            "a file:// URI of another host", path=path, hint="write file:///absolute/path"
        )
    # Not urlsplit: a '?' here is a glob's, not a query's.
    return unquote(path[match.end() :])


def expand_input(path: str) -> list[str]:
    """Return the absolute paths that one input names.

    A path that exists is taken as it is, even with ``*`` or ``[`` in its name; otherwise it is
    a glob (``**`` crosses folders), whose matches are sorted.

    Raises
    ------
    InputError
        Nothing is there, or the glob matches nothing, or the path cannot be looked at.
    """
    plain = os.path.abspath(local_path(path))
    try:
        os.stat(plain)
    except OSError as error:
        if glob.has_magic(plain):
            matches = sorted(glob.glob(plain, recursive=True))
            if matches:
                return [os.path.normpath(match) for match in matches]
            raise InputError("no path matches this glob", path=path) from None
        raise InputError(
            f"cannot read the input: {error.strerror}", path=path, hint="check the path"
        ) from error
    return [plain]


def expand_directories(inputs: Sequence[str]) -> list[str]:
    """Return the absolute directories that the inputs name, each once, in order.

    Files are an error when named outright and passed over when a glob matched them
    (``dump/*`` also matches ``meta.properties``).

    Raises
    ------
    InputError
        No input is given, one does not exist or is a file, or a glob matches no directory.
    """
    if not inputs:
        raise InputError("no input given", hint="name a directory of Kafka logs")
    found: dict[str, None] = {}
    for path in inputs:
        matches = expand_input(path)
        directories = [match for match in matches if os.path.isdir(match)]
        if not directories:
            raise InputError(
                "not a directory",
                path=path,
                hint="give a data directory, one topic-partition directory, or a glob of either",
            )
        found.update(dict.fromkeys(directories))
    return list(found)


def refuse_overlap(
    output: str, given: str, inputs: Iterable[str], *, hint: str = "choose another place"
) -> None:
    """Refuse an output that is an input, or lies inside one, or holds one.

    Parameters
    ----------
    output : str
        A local path.
    given : str
        The same as it was given, for errors.
    inputs : iterable of str
        Paths and globs.
    hint : str
        What to do instead.

    Raises
    ------
    InputError
        It does.
    """
    root = os.path.realpath(output)
    for one in inputs:
        for path in expand_input(one):
            real = os.path.realpath(path)
            if os.path.commonpath([root, real]) in (root, real):
                relation = (
                    "is the input"
                    if root == real
                    else "lies inside the input"
                    if len(root) > len(real)
                    else "holds the input"
                )
                raise InputError(f"the output {relation} {path}", path=given, hint=hint)
