"""A batch whose magic byte was changed: what a broker and a consumer do, and what we report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafka_index import verify
from kafka_index.commands.verify.result import FileClass, FileKind
from kafka_index.core.format.config import LogConfig
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_start
from tests.support.missing_offsets import NAME, checkpoint, write_partition
from tests.support.restoring import restore
from tests.support.segments import batch

from .reference_log import load

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference

WHOLE = batch(0) + batch(3) + batch(6)


def unreadable_offsets(root: Path) -> str:
    prediction = predict_start([str(root)], StartConditions(LogConfig(), properties={}))
    (partition,) = prediction.partitions
    return partition.unserved or ""


@pytest.mark.parametrize("magic", [3, 127])
@pytest.mark.parametrize("is_clean", [True, False])
def test_consumers_stop_at_an_unknown_magic_and_restore_skips_it(
    reference: KafkaReference, tmp_path: Path, magic: int, *, is_clean: bool
) -> None:
    damaged, other = tmp_path / "damaged", tmp_path / "other"
    for root, data in ((damaged, batch(0) + batch(3, magic=magic) + batch(6)), (other, WHOLE)):
        write_partition(root, {0: data})
        checkpoint(root, "replication-offset-checkpoint", 9)
        if is_clean:
            (root / ".kafka_cleanshutdown").touch()

    verified = verify([damaged], threads=1)
    (found,) = [row for row in verified.findings if row.kind is FileKind.LOG]
    assert (found.file_class, found.harmful) == (FileClass.CORRUPT, True)
    assert found.found == f"unknown_magic (expected magic 0 to 2, found magic {magic})"
    assert (
        f"unknown_magic at byte {len(batch(0))}: consumers cannot read past this batch"
        in unreadable_offsets(damaged)
    )
    assert "unknown_magic" not in unreadable_offsets(other)

    alone = restore(damaged, tmp_path / "alone", "--salvage", "batches")
    assert alone.code == 1
    assert f"offsets 3 to 5 (unknown number of records): {found.found}" in alone.done.stdout
    filled = restore(damaged, tmp_path / "filled", "--input", other)
    assert filled.code == 0, filled.done.stderr
    assert (tmp_path / "filled" / NAME / f"{0:020d}.log").read_bytes() == WHOLE

    with load(reference, damaged / NAME, clean=is_clean) as log:
        assert log.loaded.log_end_offset == 9
        first, behind = (log.consume(at, committed=False) for at in (0, 6))
    assert [record.offset for record in first.records] == [0, 1, 2]
    assert first.fault is not None
    assert ([record.offset for record in behind.records], behind.fault) == ([6, 7, 8], None)
