"""The effects of a broker on a restored log, and the dump after it.

Kafka's own ``UnifiedLog`` loads the log, appends, and truncates as a follower does.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from kafka_index.core.records.record_batch import Record, write_record_batch
from tests.support.builds import xfs_disk
from tests.support.restoring import contents, copy_dump, logs, restore

from .reference_log import load

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference

PARTITION = "audit.trail-0"
NOW_MS = 1_700_000_000_000


def append_and_truncate(reference: KafkaReference, directory: Path) -> None:
    """Append to a log, and truncate it into its last segment, into an earlier one, and wholly."""
    batch = directory.parent / "batch"
    batch.write_bytes(write_record_batch([Record(NOW_MS, b"key", b"value")]))
    base_offsets = [int(log.stem) for log in logs(directory)]
    with load(reference, directory, clean=True, now_ms=NOW_MS) as log:
        end = log.loaded.log_end_offset
        assert log.append_as_leader(batch, 99).state.log_end_offset == end + 1
        for offset in (end - 1, base_offsets[1] + 1, base_offsets[0] + 1):
            assert log.truncate_to(offset).log_end_offset <= offset
            log.append_as_leader(batch, 99)


@pytest.mark.parametrize("link", ["auto", "reflink", "copy"])
def test_broker_on_restored_logs_changes_no_byte_of_the_dump(
    tmp_path: Path, reference: KafkaReference, link: str
) -> None:
    on_xfs = link == "reflink"
    with xfs_disk(tmp_path / "xfs") if on_xfs else nullcontext(tmp_path) as disk:
        dump = copy_dump(disk / "dump", PARTITION)
        before = contents(dump)
        assert restore(dump, disk / "out", "--link", link).code == 0

        append_and_truncate(reference, disk / "out" / PARTITION)

        assert contents(dump) == before


def test_truncation_of_a_hard_linked_log_changes_the_dump_as_warned(
    tmp_path: Path, reference: KafkaReference
) -> None:
    dump = copy_dump(tmp_path / "dump", PARTITION)
    before = contents(dump)
    run = restore(dump, tmp_path / "out", "--link", "hard")
    assert "truncates the log of the dump" in run.done.stdout

    append_and_truncate(reference, tmp_path / "out" / PARTITION)

    changed = {name for name, data in contents(dump).items() if data != before[name]}
    rolled = {str(log.relative_to(dump)) for log in logs(dump / PARTITION)[:-1]}
    assert changed
    assert changed <= rolled
