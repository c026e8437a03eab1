"""Repositories of backups, made of data directories at rest at given times."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_index.commands.backup import broker_backup, chunks
from kafka_index.commands.backup.backups import expire_backups, verify_backups
from kafka_index.commands.backup.request import (
    BackupRequest,
    ExpireBackupsRequest,
    VerifyBackupsRequest,
)
from kafka_index.commands.backup.result import ExpireBackupsResult, VerifyBackupsResult
from kafka_index.core.fs.backup.manifest import Manifest, backup_id_at
from kafka_index.core.logdir.data_directory import DataDirectory
from tests.commands.backup.fake_broker import make_in_steps
from tests.support.restoring import copy_dump

_HEADER = struct.Struct(">qi4xb6xi")
_OVERHEAD_BYTES = 12


def cluster_id_of(root: Path) -> str:
    """Return the cluster that a data directory is of."""
    return DataDirectory(str(root)).properties["cluster.id"]


def make_backup(
    root: str | Path,
    data: Path,
    *,
    time_ms: int,
    topics: str | None = None,
    chunk_bytes: int = 20_000,
    before: Mapping[str, Callable[[], object]] | None = None,
) -> Manifest:
    """Take a run of a broker that was stopped, as if it were a time, with pieces of so many bytes.

    `before`: called before the steps of a run, by their names.
    """
    request = BackupRequest(
        inputs=(str(data),),
        output=str(root),
        topics=None if topics is None else re.compile(topics),
        brokers=(1,),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MAX_CHUNK_BYTES", chunk_bytes)
        patch.setattr(broker_backup, "now_ms", lambda: time_ms)
        return make_in_steps(request, before=before, backup_id=backup_id_at(time_ms))[1]


#: Arguments of `expire` that keep only the newest complete backup.
NEWEST_ONLY: dict[str, Any] = {"keep_daily": 0, "keep_weekly": 0, "keep_monthly": 0}


def verify(root: str, **request_fields: Any) -> VerifyBackupsResult:
    return verify_backups(VerifyBackupsRequest(uri=root, **request_fields))


def expire(root: str, **request_fields: Any) -> ExpireBackupsResult:
    return expire_backups(ExpireBackupsRequest(uri=root, **request_fields))


def earlier_dump(target: Path, name: str, end_offset: int) -> Path:
    """Copy the example dump as it was when a partition ended at an offset."""
    copy = copy_dump(target)
    for log in sorted((copy / name).glob("*.log")):
        data = log.read_bytes()
        at = 0
        while at < len(data):
            base, length, _, delta = _HEADER.unpack_from(data, at)
            if base + delta >= end_offset:
                break
            at += _OVERHEAD_BYTES + length
        log.write_bytes(data[:at])
        if int(log.stem) >= end_offset:
            log.unlink()
    return copy
