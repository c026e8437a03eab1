"""Transactions of tables: what is aborted, and where ``read_committed`` ends."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import kafka_index
from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.records import ABORTED_TXN, field_position
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.read.transactions import read_transactions
from tests.support.command_line import run_here
from tests.support.record_tables import rows_of, write_partition
from tests.support.segments import CONTROL, TRANSACTIONAL, batch, control_batch, marker
from tests.support.transactional_logs import segments

COMMITTED = "read_committed"
COLUMNS = ("offset", "is_aborted")


class IsolationModel:
    """The records of a consumer: a broker's aborted transactions, then its own filter."""

    def __init__(self, log: bytes) -> None:
        self.aborted_offsets: list[int] = []
        self.data_offsets: list[int] = []
        opened: dict[int, list[int]] = {}
        first_offsets: dict[int, int] = {}
        position = 0
        while position < len(log):
            base, length = struct.unpack_from(">qi", log, position)
            attributes, last_delta = struct.unpack_from(">hi", log, position + 21)
            (producer,) = struct.unpack_from(">q", log, position + 43)
            offsets = list(range(base, base + last_delta + 1))
            if attributes & CONTROL:
                (kind,) = struct.unpack_from(">h", log, position + 61 + 7)
                of_producer = opened.pop(producer, [])
                first_offsets.pop(producer, None)
                if kind == 0:
                    self.aborted_offsets += of_producer
            else:
                self.data_offsets += offsets
                if attributes & TRANSACTIONAL:
                    opened.setdefault(producer, []).extend(offsets)
                    first_offsets.setdefault(producer, base)
            position += 12 + length
            self.end = base + last_delta + 1
        self.stable = min([self.end, *first_offsets.values()])

    @property
    def committed_offsets(self) -> list[int]:
        """The records of ``read_committed``."""
        aborted = set(self.aborted_offsets)
        return [
            offset for offset in self.data_offsets if offset < self.stable and offset not in aborted
        ]


def build(folder: Path) -> None:
    assert run_here("build", "--input", folder.parent, "--in-place").returncode == 0


def build_without_snapshots(folder: Path) -> None:
    build(folder)
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()


def build_with_wrong_indexes(folder: Path, change: Callable[[bytes], bytes | None]) -> None:
    """Change all transaction indexes, which have no checksums."""
    build(folder)
    for index in folder.glob("*.txnindex"):
        changed = change(index.read_bytes())
        index.unlink()
        if changed is not None:
            index.write_bytes(changed)


def flipped(byte: int) -> Callable[[bytes], bytes]:
    """Flip the lowest bit of a byte of each entry."""
    return lambda data: bytes(
        value ^ (at % ABORTED_TXN.itemsize == byte) for at, value in enumerate(data)
    )


WRONG: dict[str, Callable[[bytes], bytes | None]] = {
    "zeroed": lambda data: bytes(len(data)),
    "random": lambda data: random.Random(7).randbytes(len(data)),
    "empty": lambda _data: b"",
    "removed": lambda _data: None,
    "cut": lambda data: data[:-7],
    "without-the-first-entry": lambda data: data[ABORTED_TXN.itemsize :],
    **{
        f"bit-of-{name}": flipped(
            field_position(ABORTED_TXN, name) + ABORTED_TXN[name].itemsize - 1
        )
        for name in ABORTED_TXN.names or ()
    },
}


@pytest.mark.parametrize("wrong", WRONG)
def test_isolation_depends_on_markers_and_not_on_transaction_indexes(
    tmp_path: Path, wrong: str
) -> None:
    logs = segments(7)
    folder = write_partition(tmp_path, logs)
    build_with_wrong_indexes(folder, WRONG[wrong])
    model = IsolationModel(b"".join(logs.values()))
    result = kafka_index.read_records(folder, isolation=COMMITTED).read_all()
    assert result["offset"].to_pylist() == model.committed_offsets
    aborted = set(model.aborted_offsets)
    table = kafka_index.read_records(folder, columns=COLUMNS).read_all()
    assert rows_of(table, *COLUMNS) == [
        (offset, offset in aborted) for offset in model.data_offsets
    ]


@pytest.mark.parametrize("kept_bytes", [0, 0xFF])
def test_damaged_transaction_marker_makes_later_isolation_unknown(
    tmp_path: Path, kept_bytes: int
) -> None:
    """Its control flag may be lost with the rest: it is as small as a marker."""
    opened = batch(1, 1, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    end = bytearray(marker(2, 5, 0, commit=False))
    end[-3] ^= 1
    end[22] &= kept_bytes
    log = batch(0, 1) + opened + bytes(end) + batch(3, 1) + marker(4, 5, 0, commit=True)
    folder = write_partition(tmp_path, {0: log})
    with pytest.raises(CorruptLogError, match="bad_crc"):
        kafka_index.read_records(folder, isolation=COMMITTED).read_all()
    left = kafka_index.read_records(folder, isolation=COMMITTED, on_damage="permissive").read_all()
    assert left["offset"].to_pylist() == [0, None]
    bounded = kafka_index.read_records(folder, isolation=COMMITTED, ending_offsets=1).read_all()
    assert bounded["offset"].to_pylist() == [0]


@pytest.mark.parametrize("prepare", [None, build, build_without_snapshots])
def test_aborted_and_unstable_records_are_skipped(
    tmp_path: Path, prepare: Callable[[Path], None] | None
) -> None:
    logs = segments(7)
    folder = write_partition(tmp_path, logs)
    if prepare is not None:
        prepare(folder)
    model = IsolationModel(b"".join(logs.values()))
    assert model.stable < model.end
    result = kafka_index.read_records(folder, isolation=COMMITTED).read_all()
    assert result["offset"].to_pylist() == model.committed_offsets
    aborted = set(model.aborted_offsets)
    table = kafka_index.read_records(folder, columns=COLUMNS).read_all()
    assert rows_of(table, *COLUMNS) == [
        (offset, offset in aborted) for offset in model.data_offsets
    ]


@pytest.mark.parametrize("prepare", [None, build])
def test_read_from_any_offset_skips_transactions_aborted_later(
    tmp_path: Path, prepare: Callable[[Path], None] | None
) -> None:
    logs = segments(5)
    folder = write_partition(tmp_path, logs)
    if prepare is not None:
        prepare(folder)
    model = IsolationModel(b"".join(logs.values()))
    for start in range(0, model.end, 17):
        end = start + 40
        reader = kafka_index.read_records(
            folder, isolation=COMMITTED, starting_offsets=start, ending_offsets=end
        )
        result = reader.read_all()["offset"].to_pylist()
        assert result == [offset for offset in model.committed_offsets if start <= offset < end]


def test_transaction_that_ended_above_the_high_watermark_is_open(tmp_path: Path) -> None:
    log = (
        batch(0, 1),
        batch(1, 1, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
        batch(2, 1),
        marker(3, 5, 0, commit=True),
        batch(4, 1),
    )
    write_partition(tmp_path, {0: b"".join(log)})
    checkpoint = tmp_path / "replication-offset-checkpoint"
    for high_watermark, offsets in ((3, [0]), (4, [0, 1, 2]), (5, [0, 1, 2, 4])):
        checkpoint.write_text(f"0\n1\ntopic 0 {high_watermark}\n")
        reader = kafka_index.read_records(
            tmp_path, isolation=COMMITTED, upper_bound="high-watermark"
        )
        assert reader.read_all()["offset"].to_pylist() == offsets


def test_last_snapshot_of_a_clean_shutdown_has_the_open_transactions(tmp_path: Path) -> None:
    logs = segments(4)
    folder = write_partition(tmp_path, logs)
    model = IsolationModel(b"".join(logs.values()))
    build(folder)
    # As a broker leaves it: with a snapshot at the end of the log, here a different one.
    empty = min(folder.glob("*.snapshot"))
    (folder / f"{model.end:020d}.snapshot").write_bytes(empty.read_bytes())
    with PartitionLog.open(folder) as log:
        stable = read_transactions(log.files, 0, log.end_offset).last_stable_offset
    assert stable != model.stable


def test_control_batches_without_a_transaction_have_no_effect(tmp_path: Path) -> None:
    log = batch(0, 1) + control_batch(1, -1, -1, b"\0\0\0\2", b"\0" * 9, transactional=False)
    folder = write_partition(tmp_path, {0: log + batch(2, 1)})
    table = kafka_index.read_records(folder, isolation=COMMITTED).read_all()
    assert table["offset"].to_pylist() == [0, 2]
