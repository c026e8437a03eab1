"""The files of a local disk, an object store or HDFS, behind one thin interface.

A path is a plain path or a URI (``s3://bucket/key``); ``os.path.join``, ``basename`` and
``dirname`` work on both. `store_of` returns the store that a path belongs to.
"""

from kafka_index.stores.registry import configure_stores, storage_options, store_of
from kafka_index.stores.store import (
    Bytes,
    ByteSource,
    DirectoryEntry,
    FileInfo,
    StorageOptions,
    Store,
    is_remote,
    parse_storage_options,
    scheme_of,
)

__all__ = [
    "ByteSource",
    "Bytes",
    "DirectoryEntry",
    "FileInfo",
    "StorageOptions",
    "Store",
    "configure_stores",
    "is_remote",
    "parse_storage_options",
    "scheme_of",
    "storage_options",
    "store_of",
]
