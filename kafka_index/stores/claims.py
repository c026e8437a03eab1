"""Replacing a file that is still the one that was seen, where a store cannot compare versions."""

from __future__ import annotations

from kafka_index.stores.store import FileInfo, Store

_CLAIM_SUFFIX = ".claim"


def replace_by_claim(store: Store, path: str, data: bytes, info: FileInfo) -> bool:
    """Do what `Store.replace` does: whoever makes a file beside it may compare and write.

    A process that is killed meanwhile leaves that file, and nobody replaces the other one before it
    is deleted (`find_claim`).
    """
    claim = _claim_of(path)
    if not store.put(claim, b"", if_absent=True):
        return False
    try:
        try:
            now = store.info(path)
        except FileNotFoundError:
            return False
        return now == info and store.put(path, data)
    finally:
        store.delete([claim])


def find_claim(store: Store, path: str) -> str | None:
    """Return the file by which a process claims a file at present, None where there is none."""
    claim = _claim_of(path)
    try:
        store.info(claim)
    except FileNotFoundError:
        return None
    return claim


def _claim_of(path: str) -> str:
    return f"{path}{_CLAIM_SUFFIX}"
