"""URIs of stores; this module imports no storage library."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kafka_index.core.errors import InputError
from kafka_index.core.format.uri_passwords import refuse_passwords

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


def remote_among(paths: Iterable[str]) -> list[str]:
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
