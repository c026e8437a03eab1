"""The URIs that name stores; imported without the libraries that read them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kafka_index.core.errors import InputError
from kafka_index.core.format.uri_passwords import refuse_passwords

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<authority>[^/]*)")
#: Schemes of object stores, and the extra that has their library.
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
#: Schemes that name the same bucket or container as another.
SAME_SCHEMES = {"s3a": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URI, in lower case; None for a plain path."""
    match = _URI.match(path)
    if match is None:
        return None
    refuse_passwords([path])
    return match["scheme"].lower()


def is_remote(path: str) -> bool:
    """Return whether a path is a URI of a store other than the local disk."""
    return scheme_of(path) not in (None, "file")


def remote_among(paths: Iterable[str]) -> list[str]:
    """Return the paths that are URIs of a store other than the local disk."""
    return list(filter(is_remote, paths))


def refuse_remote(path: str, message: str, *, hint: str) -> None:
    """Raise `InputError` for the URI of a store, where only a path of this machine will do."""
    if is_remote(path):
        raise InputError(message, path=path, hint=hint)


def split_uri(path: str) -> tuple[str, str]:
    """Return the store's part of a URI, and the rest without its slashes at either end.

    ``s3://bucket/a/b/`` is ``("s3://bucket", "a/b")``.
    """
    match = _URI.match(path)
    if match is None:
        raise ValueError(f"not a URI: {path}")
    return match[0], path[match.end() :].strip("/")
