"""Names of remote segments: the keys of both layouts, and the paths by which segments are opened.

Kafka's LocalTieredStorage and Aiven's plugin use these keys for the objects of a segment::

    {root}/kafka-tiered-storage/{topic}-{partition}-{topic id}/{start offset}-{segment id}{suffix}
    {root}/{prefix}{topic}-{topic id}/{partition}/{start offset}-{segment id}{suffix}

The path of a segment's file is the key with a folder for the segment, so that the files have
the same names as in a data directory. The scheme contains the layout and the store's scheme::

    tiered+aiven+s3://bucket/orders-ID/0/SEGMENT/00000000000000000078.index
    tiered+local:///mnt/tier/kafka-tiered-storage/orders-0-ID/SEGMENT/00000000000000000078.log

``SEGMENT@BYTES`` is the start of a segment whose remaining offsets are read from another
segment. It has no index files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from kafka_index.core.errors import InputError
from kafka_index.core.format.names import OFFSET_DIGITS
from kafka_index.core.fs.uris import scheme_of

SCHEME_PREFIX = "tiered+"

#: Unpadded URL-safe base64 of 16 bytes (Kafka's Uuid.toString).
UUID_PATTERN = "[A-Za-z0-9_-]{22}"

_FILE = rf"(?P<offset>[0-9]{{{OFFSET_DIGITS}}})-(?P<segment>{UUID_PATTERN})(?P<suffix>\.[a-z_-]+)"
_PATH = re.compile(
    rf"(?P<parent>.*/)(?P<segment>{UUID_PATTERN})(?:@(?P<limit>[0-9]{{1,10}}))?/"
    rf"(?P<offset>[0-9]{{{OFFSET_DIGITS}}})(?P<suffix>\.[a-z_]+)"
)


class Layout(Enum):
    """The object layout of a tiered storage plugin."""

    LOCAL = "local"
    AIVEN = "aiven"


_KEYS = {
    Layout.LOCAL: re.compile(
        rf"(?P<parent>(?:.*/)?(?P<topic>[^/]+)-(?P<partition>[0-9]{{1,10}})-(?P<id>{UUID_PATTERN})/)"
        + _FILE
    ),
    Layout.AIVEN: re.compile(
        rf"(?P<parent>(?P<topic>.*)-(?P<id>{UUID_PATTERN})/(?P<partition>[0-9]{{1,10}})/)" + _FILE
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
    """Split a key into the segment's key and the suffix; None if it is not the key of a segment."""
    match = _KEYS[layout].fullmatch(key)
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
    the log ends there.
    """

    layout: Layout
    name: str
    file_suffix: str
    limit_bytes: int | None = None


def segment_path(
    layout: Layout, root: str, key: SegmentKey, suffix: str, limit_bytes: int | None = None
) -> str:
    """Return the path by which a file of a segment is opened.

    If `limit_bytes` is given, the log ends there.
    """
    limit = "" if limit_bytes is None else f"@{limit_bytes}"
    file = f"{key.start_offset:0{OFFSET_DIGITS}d}{suffix}"
    inner = f"{root.rstrip('/')}/{key.parent}{key.segment_id}{limit}/{file}"
    scheme = SCHEME_PREFIX + layout.value
    return f"{scheme}+{inner}" if scheme_of(root) else f"{scheme}://{inner}"


def is_segment_path(path: str) -> bool:
    return path.startswith(SCHEME_PREFIX)


def inner_root(root: str) -> tuple[Layout, str]:
    """Split the scheme and authority of a segment's path into the layout and the store's root.

    ``tiered+aiven+s3://bucket`` is Aiven's layout in ``s3://bucket``; the local disk is ``/``.
    """
    scheme, authority = root[len(SCHEME_PREFIX) :].split("://", 1)
    name, _, inner = scheme.partition("+")
    try:
        layout = Layout(name)
    except ValueError:
        expected = " or ".join(f"{SCHEME_PREFIX}{each.value}" for each in Layout)
        raise InputError("not a scheme of tiered storage", path=root, expected=expected) from None
    return layout, f"{inner}://{authority}" if inner else "/"


def parse_segment_path(path: str) -> SegmentPath:
    """Parse the path of a segment's file; raises `InputError` for any other path."""
    scheme, separator, rest = path.partition("://")
    match = _PATH.fullmatch(rest)
    if not separator or match is None:
        raise InputError("not a file of a remote segment", path=path)
    layout, root = inner_root(f"{scheme}://")
    parent = match["parent"] if root == "/" else root + match["parent"]
    return SegmentPath(
        layout,
        f"{parent}{match['offset']}-{match['segment']}",
        match["suffix"],
        None if match["limit"] is None else int(match["limit"]),
    )
