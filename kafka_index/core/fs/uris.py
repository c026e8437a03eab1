"""URIs of stores, and the paths of files of backups and of remote segments.

Users select a backup by the first three forms of input. They are resolved once, to a path of one of
the last two forms::

    backup:ROOT           the newest complete backup of a repository
    backup:ROOT@TIME      the newest complete backup at or before a time
    backup:ROOT@ID        the backup with this ID; a path in it may follow: ROOT@ID/orders-0
    backup+s3://bucket/prefix/@ID/orders-0/00000000000000000078.log
    backup:///mnt/backups/@ID/orders-0/00000000000000000078.log

The ``@`` must follow the last slash of the root, because the authority of a URI may contain another
``@``.

Kafka's LocalTieredStorage and Aiven's plugin use these keys for the objects of a segment::

    {root}/kafka-tiered-storage/{topic}-{partition}-{topic id}/{start offset}-{segment id}{suffix}
    {root}/{prefix}{topic}-{topic id}/{partition}/{start offset}-{segment id}{suffix}

The path of a segment's file is the key with a folder for the segment, so that the files have
the same names as in a data directory. The scheme contains the layout and the store's scheme::

    tiered+aiven+s3://bucket/orders-ID/0/SEGMENT/00000000000000000078.index
    tiered+local:///mnt/tier/kafka-tiered-storage/orders-0-ID/SEGMENT/00000000000000000078.log

``SEGMENT@BYTES`` is the first part of a segment, of this size. The remaining offsets are read from
another segment, and the part has no index files.

This module imports no storage library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from os import PathLike
from typing import Final, NamedTuple

from kafka_index.core.errors import (
    ConfigError,
    InputError,
    argument_text,
    check_field_types,
    refuse_other_types,
)
from kafka_index.core.format.config import to_list_members
from kafka_index.core.format.names import OFFSET_DIGITS
from kafka_index.core.format.uri_passwords import path_of, refuse_passwords

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<authority>[^/]*)")
#: Schemes of object stores, and the extra that installs their library.
OBJECT_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "wasb": "azure",
    "wasbs": "azure",
}
HDFS_SCHEME = "hdfs"
#: Alternative schemes of the same stores.
SAME_SCHEMES = {"s3a": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URI in lower case; None for a plain path."""
    match = _URI.match(path)
    if match is None:
        return None
    refuse_passwords([path])
    return match["scheme"].lower()


def is_remote(path: str) -> bool:
    return scheme_of(path) not in (None, "file")


def select_remote(paths: Iterable[str]) -> list[str]:
    """Return the paths that are URIs of a store other than the local disk."""
    return list(filter(is_remote, paths))


def refuse_remote(path: str, message: str, *, hint: str) -> None:
    """Raise `InputError` for a remote URI if only a local path is supported."""
    if is_remote(path):
        raise InputError(message, path=path, hint=hint)


def split_uri(path: str) -> tuple[str, str]:
    """Split a URI into the store and the rest, without leading and trailing slashes.

    ``s3://bucket/a/b/`` is ``("s3://bucket", "a/b")``.
    """
    match = _URI.match(path)
    if match is None:
        raise ValueError(f"not a URI: {path}")
    return match[0], path[match.end() :].strip("/")


_TIERED_PREFIX = "tiered+"

#: Unpadded URL-safe base64 of 16 bytes (Kafka's Uuid.toString).
UUID_PATTERN = "[A-Za-z0-9_-]{22}"

_SEGMENT_FILE = (
    rf"(?P<offset>[0-9]{{{OFFSET_DIGITS}}})-(?P<segment>{UUID_PATTERN})(?P<suffix>\.[a-z_-]+)"
)
_SEGMENT_PATH = re.compile(
    rf"(?P<parent>.*/)(?P<segment>{UUID_PATTERN})(?:@(?P<limit>[0-9]{{1,10}}))?/"
    rf"(?P<offset>[0-9]{{{OFFSET_DIGITS}}})(?P<suffix>\.[a-z_]+)"
)


class Layout(Enum):
    """The object layout of a tiered storage plugin."""

    LOCAL = "local"
    AIVEN = "aiven"


@dataclass(frozen=True, slots=True)
class TieredOptions:
    """The location of remote segments, and the topics to read.

    Parameters
    ----------
    uris : tuple of str
        Folders of objects: paths or URIs.
    layout : str, optional
        Object layout, ``aiven`` or ``local``. By default, or with ``auto``, it is detected.
    key_prefix : str, optional
        ``key.prefix`` of Aiven's plugin; other keys are skipped. Default: any.
    topic_ids : tuple of str
        Topic IDs to read if several topics have the same name.
    keys : tuple of (str, str)
        IDs of key pairs for encrypted segments, and files with their private keys.
    """

    uris: tuple[str, ...] = ()
    layout: str | None = None
    key_prefix: str | None = None
    topic_ids: tuple[str, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_argument(
        cls, argument: TieredOptions | str | PathLike[str] | Sequence[str | PathLike[str]] | None
    ) -> TieredOptions | None:
        """Convert an argument: options, one or several folders, or None."""
        if argument is None or isinstance(argument, TieredOptions):
            return argument
        folders = [argument] if isinstance(argument, str | PathLike) else to_list_members(argument)
        paths = [os.fspath(path) for path in folders or () if isinstance(path, str | PathLike)]
        uris = tuple(path for path in paths if isinstance(path, str) and "\0" not in path)
        if folders is None or len(uris) < len(folders):
            raise ConfigError(
                "tiered is not a path",
                expected="a path or URI, or a list of paths and URIs",
                found=argument_text(argument),
            )
        return cls(uris)

    def __post_init__(self) -> None:
        for name in ("uris", "topic_ids"):
            texts = getattr(self, name)
            if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
                raise ConfigError(
                    f"{name} is not a tuple of str",
                    expected="a tuple of str",
                    found=argument_text(texts),
                )
        refuse_other_types(keys=(self.keys, tuple))
        for pair in self.keys:
            refuse_other_types(**{"a pair of keys": (pair, tuple)})
        check_field_types(self)
        for uri in self.uris:
            path_of(uri, "a URI")
        choices = ("auto", *sorted(layout.value for layout in Layout))
        if self.layout not in (None, *choices):
            raise ConfigError(
                "layout is unknown",
                expected=", ".join(choices),
                found=argument_text(self.layout),
            )
        object.__setattr__(self, "layout", None if self.layout == "auto" else self.layout)


_SEGMENT_KEYS = {
    Layout.LOCAL: re.compile(
        rf"(?P<parent>(?:.*/)?(?P<topic>[^/]+)-(?P<partition>[0-9]{{1,10}})-(?P<id>{UUID_PATTERN})/)"
        + _SEGMENT_FILE
    ),
    Layout.AIVEN: re.compile(
        rf"(?P<parent>(?P<topic>.*)-(?P<id>{UUID_PATTERN})/(?P<partition>[0-9]{{1,10}})/)"
        + _SEGMENT_FILE
    ),
}


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The key of a remote segment without its suffix.

    `parent` precedes the start offset and ends with a slash. In Aiven's layout, `prefixed_topic`
    includes the key prefix. IDs are UUIDs as Kafka prints them.
    """

    parent: str
    prefixed_topic: str
    topic_id: str
    partition: int
    start_offset: int
    segment_id: str

    @property
    def name(self) -> str:
        return f"{self.parent}{self.start_offset:0{OFFSET_DIGITS}d}-{self.segment_id}"


def parse_key(layout: Layout, key: str) -> tuple[SegmentKey, str] | None:
    """Split an object key into the segment's key and the suffix; None for other object keys."""
    match = _SEGMENT_KEYS[layout].fullmatch(key)
    if match is None:
        return None
    return (
        SegmentKey(
            match["parent"],
            match["topic"],
            match["id"],
            int(match["partition"]),
            int(match["offset"]),
            match["segment"],
        ),
        match["suffix"],
    )


@dataclass(frozen=True, slots=True)
class SegmentPath:
    """A file of a remote segment, parsed from its path.

    `name` is the path or URI of the segment's objects without a suffix. If `limit_bytes` is given,
    the log ends at this position.
    """

    layout: Layout
    name: str
    file_suffix: str
    limit_bytes: int | None = None


def segment_path(
    layout: Layout, root: str, key: SegmentKey, suffix: str, limit_bytes: int | None = None
) -> str:
    """Return the path under which a file of a segment can be opened.

    If `limit_bytes` is given, the log ends at this position.
    """
    limit = "" if limit_bytes is None else f"@{limit_bytes}"
    file = f"{key.start_offset:0{OFFSET_DIGITS}d}{suffix}"
    inner_path = f"{root.rstrip('/')}/{key.parent}{key.segment_id}{limit}/{file}"
    scheme = _TIERED_PREFIX + layout.value
    return f"{scheme}+{inner_path}" if scheme_of(root) else f"{scheme}://{inner_path}"


def is_segment_path(path: str) -> bool:
    return path.startswith(_TIERED_PREFIX)


def inner_root(root: str) -> tuple[Layout, str]:
    """Split the scheme and authority of a segment's path into the layout and the store's root.

    ``tiered+aiven+s3://bucket`` is Aiven's layout in ``s3://bucket``; the local disk is ``/``.
    """
    scheme, authority = root[len(_TIERED_PREFIX) :].split("://", 1)
    name, _, inner_scheme = scheme.partition("+")
    try:
        layout = Layout(name)
    except ValueError:
        expected = " or ".join(f"{_TIERED_PREFIX}{known_layout.value}" for known_layout in Layout)
        raise InputError(
            "the URI has no scheme of tiered storage", path=root, expected=expected
        ) from None
    return layout, f"{inner_scheme}://{authority}" if inner_scheme else "/"


def parse_segment_path(path: str) -> SegmentPath:
    """Parse the path of a segment's file; raises `InputError` for any other path."""
    scheme, separator, path_without_scheme = path.partition("://")
    match = _SEGMENT_PATH.fullmatch(path_without_scheme)
    if not separator or match is None:
        raise InputError("the path is not a file of a remote segment", path=path)
    layout, root = inner_root(f"{scheme}://")
    parent = match["parent"] if root == "/" else root + match["parent"]
    return SegmentPath(
        layout,
        f"{parent}{match['offset']}-{match['segment']}",
        match["suffix"],
        None if match["limit"] is None else int(match["limit"]),
    )


REPOSITORY_FILE: Final = "kafka-index-backup.json"
#: Regular expression for backup IDs.
BACKUP_ID_PATTERN: Final = r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z"

_BACKUP_SCHEME = "backup"
_BACKUP_INPUT = f"{_BACKUP_SCHEME}:"
_BACKUP_PREFIXES = (f"{_BACKUP_SCHEME}+", f"{_BACKUP_SCHEME}://")
_BACKUP_PATH = re.compile(
    rf"{_BACKUP_SCHEME}(?:\+(?P<scheme>[a-z0-9]+))?://(?P<root>.*?)/@(?P<id>{BACKUP_ID_PATTERN})"
    r"(?:/(?P<below>.*))?"
)
_BACKUP_AND_ID = re.compile(rf"(?P<root>.+?)/?@(?P<id>{BACKUP_ID_PATTERN})(?P<below>/.*)?")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")


class BackupPath(NamedTuple):
    """A path in a backup: the root of the repository, the backup ID, and the path below it."""

    root: str
    backup_id: str
    below: str = ""


def is_backup_path(path: str) -> bool:
    """Return whether a path, or its scheme and authority, points into a backup."""
    return path.startswith(_BACKUP_PREFIXES)


def is_backup_input(path: str) -> bool:
    return path.startswith((_BACKUP_INPUT, *_BACKUP_PREFIXES))


def parse_backup_path(path: str) -> BackupPath | None:
    """Split a path in a backup into its parts; None for other paths."""
    match = _BACKUP_PATH.fullmatch(path)
    if match is None:
        return None
    root = match["root"] if match["scheme"] is None else f"{match['scheme']}://{match['root']}"
    return BackupPath(root or "/", match["id"], (match["below"] or "").strip("/"))


def backup_path(root: str, backup_id: str) -> str:
    scheme, separator, path_without_scheme = root.partition("://")
    repository = (
        f"{_BACKUP_SCHEME}+{scheme}://{path_without_scheme}"
        if separator
        else f"{_BACKUP_SCHEME}://{root}"
    )
    return f"{repository.rstrip('/')}/@{backup_id}"


def objects_root(root: str) -> str:
    """Return the root of the store that contains the repository; ``/`` for the local disk."""
    scheme, _, authority = root.partition("://")
    _, _, inner_scheme = scheme.partition("+")
    return f"{inner_scheme}://{authority}" if inner_scheme else "/"


def split_backup_input(path: str) -> tuple[str, str, str]:
    """Split an input into the root of the repository, the backup ID or time, and the path below."""
    location = path.removeprefix(_BACKUP_INPUT)
    if path.startswith(_BACKUP_PREFIXES[0]):
        location = path.removeprefix(_BACKUP_PREFIXES[0])
    elif location.startswith("//"):
        location = location[2:]
    authority = _AUTHORITY.match(location)
    match = _BACKUP_AND_ID.fullmatch(location)
    if match is not None:
        return match["root"], match["id"], match["below"] or ""
    at = location.find("@", max(location.rfind("/"), authority.end() if authority else 0))
    return (location, "", "") if at < 0 else (location[:at], location[at + 1 :], "")
