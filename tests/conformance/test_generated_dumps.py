"""Generated copies of partitions, restored, and loaded and read by Kafka's own code.

A consumer of each isolation level gets the records that it got of the undamaged partition, as far
as they are restored, with the same timestamps. No transaction is open that had ended.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafka_index.commands.restore.request import Salvage
from tests.commands.restore.generated_dumps import Batch, Dump, draw_dump, kept_batches, restore
from tests.support.missing_offsets import NAME, write_partition

from .campaign import CASES, SEED
from .reference_log import ConsumedRecord, load

if TYPE_CHECKING:
    from .kafka_reference import KafkaReference

PARTS = 5
DUMPS = max(CASES // 10, PARTS)

Records = dict[int, ConsumedRecord]


def consumed(
    reference: KafkaReference, directory: Path, *, clean: bool
) -> tuple[list[Records], int, int]:
    """The records of a partition by isolation level; its last stable offset and its end."""
    with load(reference, directory, clean=clean, recovery_point=1 << 40 if clean else 0) as log:
        state = log.loaded
        levels = []
        for committed in (False, True):
            result = log.consume(state.log_start_offset, committed=committed)
            assert result.fault is None, result.fault
            levels.append(
                {record.offset: record._replace(leader_epoch=0) for record in result.records}
            )
        return levels, state.last_stable_offset, state.log_end_offset


def committed_offsets(dump: Dump) -> set[int]:
    """The offsets of records in no transaction, or in a transaction that was committed."""
    found: set[int] = set()
    waiting: dict[int, set[int]] = {}
    for batch in dump.batches:
        offsets = set(range(batch.first, batch.last + 1))
        if batch.is_control:
            ended = waiting.pop(batch.producer_id, set())
            found |= ended if batch.is_commit else set()
        elif batch.is_transactional:
            waiting.setdefault(batch.producer_id, set()).update(offsets)
        else:
            found |= offsets
    return found


def is_open_at(dump: Dump, producer_id: int, end: int) -> bool:
    """Whether a transaction of the undamaged partition is open at an offset."""
    own = [
        batch
        for batch in dump.batches
        if batch.is_transactional and batch.producer_id == producer_id and batch.last < end
    ]
    return bool(own) and not own[-1].is_control


def differences(reference: KafkaReference, root: Path, seed: str) -> list[str]:
    """Generate and restore a dump; return the records that Kafka reads wrongly or does not read."""
    dump = draw_dump(root, seed)
    salvage = (Salvage.BATCHES, Salvage.PREFIX)[len(dump.changes) % 2]
    result = restore(tuple(dump.copies), root / "out", salvage)
    if result.is_skipped:
        return []
    whole = {each[0].first: b"".join(one.data for one in each) for each in dump.history}
    write_partition(root / "whole", whole)
    (records, _), *_ = consumed(reference, root / "whole" / NAME, clean=False)
    kept = kept_batches(root / "out" / NAME)
    contents = {Batch(0, 0, one).content for one in kept}
    there = [batch for batch in dump.batches if batch.content in contents]
    held = {offset for each in there for offset in range(each.first, each.last + 1)}
    if kept and not Batch(0, 0, kept[-1]).is_control and there[-1].data[8:] != kept[-1][8:]:
        # Nothing shows that a base offset is wrong after which nothing comes.
        return []
    levels, stable, end = consumed(reference, root / "out" / NAME, clean=True)
    wrong = []
    expected = {at: one for at, one in records.items() if at in held}
    committed = committed_offsets(dump)
    expected_committed = {
        at: one for at, one in expected.items() if at in committed and at < stable
    }
    for name, served, wanted in (
        ("read_uncommitted", levels[0], expected),
        ("read_committed", levels[1], expected_committed),
    ):
        if served != wanted:
            lost, more = wanted.keys() - served.keys(), served.keys() - wanted.keys()
            wrong.append(f"{name}: not served {sorted(lost)}, too many {sorted(more)}")
    if stable < end:
        (first,) = (each for each in kept if int.from_bytes(each[:8]) == stable)
        if not is_open_at(dump, Batch(0, 0, first).producer_id, end):
            wrong.append(f"the last stable offset is {stable} of {end}")
    return [f"{seed} ({dump.kind}, {salvage}): {wrong} after {dump.changes}"] if wrong else []


@pytest.mark.parametrize("part", range(PARTS))
def test_consumers_get_the_records_of_the_undamaged_partition(
    reference: KafkaReference, tmp_path: Path, part: int
) -> None:
    wrong = []
    for number in range(part, DUMPS, PARTS):
        root = tmp_path / str(number)
        wrong += differences(reference, root, f"{SEED}-{number}")
        shutil.rmtree(root)
    assert not wrong, "\n".join(wrong)
