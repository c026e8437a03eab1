"""Paths of the files of a run, and the inputs by which users name a run.

::

    backup:ROOT           the newest complete run of a repository
    backup:ROOT@TIME      the newest complete run at or before a time
    backup:ROOT@RUN       the run of this name; what is in it may follow, as ROOT@RUN/orders-0
    backup+s3://bucket/prefix/@RUN/orders-0/00000000000000000078.log
    backup:///mnt/backups/@RUN/orders-0/00000000000000000078.log

The first three become paths of the last two forms, once. In a root an ``@`` counts only after its
last slash: containers and users of stores have one before.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

REPOSITORY_FILE: Final = "kafka-index-backup.json"
#: The names of runs.
RUN_PATTERN: Final = r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z"

_SCHEME = "backup"
_INPUT = f"{_SCHEME}:"
_PREFIXES = (f"{_SCHEME}+", f"{_SCHEME}://")
_PATH = re.compile(
    rf"{_SCHEME}(?:\+(?P<scheme>[a-z0-9]+))?://(?P<root>.*?)/@(?P<run>{RUN_PATTERN})"
    r"(?:/(?P<below>.*))?"
)
_NAMED = re.compile(rf"(?P<root>.+?)/?@(?P<run>{RUN_PATTERN})(?P<below>/.*)?")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")


class RunPath(NamedTuple):
    """A path in a run: the root of the repository, the run, and the path below the run."""

    root: str
    run: str
    below: str = ""


def is_run_path(path: str) -> bool:
    """Return whether a path, or the scheme and authority of one, is of the files of a run."""
    return path.startswith(_PREFIXES)


def is_run_input(path: str) -> bool:
    """Return whether an input names a run of a repository, by whatever form."""
    return path.startswith((_INPUT, *_PREFIXES))


def parse_run_path(path: str) -> RunPath | None:
    """Return the parts of a path in a run; None for other paths."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    root = match["root"] if match["scheme"] is None else f"{match['scheme']}://{match['root']}"
    return RunPath(root or "/", match["run"], (match["below"] or "").strip("/"))


def run_path(root: str, run: str) -> str:
    """Return the path of a run in the repository with this root, a path or a URI."""
    scheme, separator, rest = root.partition("://")
    place = f"{_SCHEME}+{scheme}://{rest}" if separator else f"{_SCHEME}://{root}"
    return f"{place.rstrip('/')}/@{run}"


def objects_root(root: str) -> str:
    """Return the scheme and authority of the store under those of a run; ``/`` is the disk."""
    scheme, _, authority = root.partition("://")
    _, _, inner = scheme.partition("+")
    return f"{inner}://{authority}" if inner else "/"


def split_run_input(path: str) -> tuple[str, str, str]:
    """Return the root of a repository as a user wrote it, the run or time, and the path in it."""
    rest = path.removeprefix(_INPUT)
    if path.startswith(_PREFIXES[0]):
        rest = path.removeprefix(_PREFIXES[0])
    elif rest.startswith("//"):
        rest = rest[2:]
    authority = _AUTHORITY.match(rest)
    named = _NAMED.fullmatch(rest)
    if named is not None:
        return named["root"], named["run"], named["below"] or ""
    at = rest.find("@", max(rest.rfind("/"), authority.end() if authority else 0))
    return (rest, "", "") if at < 0 else (rest[:at], rest[at + 1 :], "")
