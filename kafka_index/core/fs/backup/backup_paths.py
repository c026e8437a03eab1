"""Paths of the files of a backup, and the inputs by which users select a backup.

::

    backup:ROOT           the newest complete backup of a repository
    backup:ROOT@TIME      the newest complete backup at or before a time
    backup:ROOT@ID        the backup with this ID; a path in it may follow: ROOT@ID/orders-0
    backup+s3://bucket/prefix/@ID/orders-0/00000000000000000078.log
    backup:///mnt/backups/@ID/orders-0/00000000000000000078.log

The first three are resolved once, to paths of the last two forms. An ``@`` in a root counts only
after its last slash, because the authority of a URI may contain one.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

REPOSITORY_FILE: Final = "kafka-index-backup.json"
#: Backup IDs.
BACKUP_ID_PATTERN: Final = r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z"

_SCHEME = "backup"
_INPUT = f"{_SCHEME}:"
_PREFIXES = (f"{_SCHEME}+", f"{_SCHEME}://")
_PATH = re.compile(
    rf"{_SCHEME}(?:\+(?P<scheme>[a-z0-9]+))?://(?P<root>.*?)/@(?P<id>{BACKUP_ID_PATTERN})"
    r"(?:/(?P<below>.*))?"
)
_NAMED = re.compile(rf"(?P<root>.+?)/?@(?P<id>{BACKUP_ID_PATTERN})(?P<below>/.*)?")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")


class BackupPath(NamedTuple):
    """A path in a backup: the root of the repository, the backup ID, and the path below it."""

    root: str
    backup_id: str
    below: str = ""


def is_backup_path(path: str) -> bool:
    """Return whether a path, or its scheme and authority, points into a backup."""
    return path.startswith(_PREFIXES)


def is_backup_input(path: str) -> bool:
    return path.startswith((_INPUT, *_PREFIXES))


def parse_backup_path(path: str) -> BackupPath | None:
    """Split a path in a backup into its parts; None for other paths."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    root = match["root"] if match["scheme"] is None else f"{match['scheme']}://{match['root']}"
    return BackupPath(root or "/", match["id"], (match["below"] or "").strip("/"))


def backup_path(root: str, backup_id: str) -> str:
    scheme, separator, rest = root.partition("://")
    place = f"{_SCHEME}+{scheme}://{rest}" if separator else f"{_SCHEME}://{root}"
    return f"{place.rstrip('/')}/@{backup_id}"


def objects_root(root: str) -> str:
    """Return the scheme and authority of the repository's store; ``/`` for a local disk."""
    scheme, _, authority = root.partition("://")
    _, _, inner = scheme.partition("+")
    return f"{inner}://{authority}" if inner else "/"


def split_backup_input(path: str) -> tuple[str, str, str]:
    """Split an input into the root of the repository, the backup ID or time, and the path below."""
    rest = path.removeprefix(_INPUT)
    if path.startswith(_PREFIXES[0]):
        rest = path.removeprefix(_PREFIXES[0])
    elif rest.startswith("//"):
        rest = rest[2:]
    authority = _AUTHORITY.match(rest)
    named = _NAMED.fullmatch(rest)
    if named is not None:
        return named["root"], named["id"], named["below"] or ""
    at = rest.find("@", max(rest.rfind("/"), authority.end() if authority else 0))
    return (rest, "", "") if at < 0 else (rest[:at], rest[at + 1 :], "")
