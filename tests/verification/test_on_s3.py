"""Verification of a dump in an object store."""

from __future__ import annotations

from pathlib import Path

from kafka_index import verify
from kafka_index.verification import FileClass, Verification
from tests.support.remote import upload
from tests.support.restoring import copy_dump


def classes(found: Verification) -> list[tuple[str, str, FileClass, bool]]:
    rows = [row for one in found.partitions for row in one.findings]
    return sorted(
        (Path(row.path).name, row.kind.value, row.file_class, row.harmful) for row in rows
    )


def test_rows_are_those_of_the_same_files_on_a_disk(configured_bucket: str, tmp_path: Path) -> None:
    data = copy_dump(tmp_path / "data", "payments-0")
    index = min((data / "payments-0").glob("*.index"))
    index.write_bytes(index.read_bytes()[:-3])
    log = max((data / "payments-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    uri = upload(data, f"{configured_bucket}/data")

    remote, local = verify([uri], threads=2), verify([data], threads=2)

    assert remote.is_harmful
    assert classes(remote) == classes(local)
