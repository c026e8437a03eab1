"""``dump`` of transaction indexes, producer snapshots and leader epochs."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import google_crc32c
import pytest

from kafka_index.core.format.times import format_time
from tests.support.command_line import DUMP, dump, json_rows, listed

PARTITION = DUMP / "payments-0"
TXN_INDEX = min(PARTITION.glob("*.txnindex"))
SNAPSHOT = max(PARTITION.glob("*.snapshot"))
EPOCHS = PARTITION / "leader-epoch-checkpoint"

TXN_FORM, ENTRY_FORM = ">hqqqq", ">qhiqiqiq"
TXN_NAMES = ["version", "producer_id", "first_offset", "last_offset", "last_stable_offset"]
ENTRY_NAMES = [
    "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta",
    "timestamp_ms", "coordinator_epoch", "current_txn_first_offset",
]  # fmt: skip


def snapshot_of(*entries: tuple[int, ...], count: int | None = None) -> bytes:
    body = struct.pack(">i", len(entries) if count is None else count)
    body += b"".join(struct.pack(ENTRY_FORM, *entry) for entry in entries)
    return struct.pack(">hI", 1, google_crc32c.value(body)) + body


def test_transaction_index_has_a_row_per_transaction() -> None:
    entries = list(struct.iter_unpack(TXN_FORM, TXN_INDEX.read_bytes()))
    assert len(entries) > 1
    assert json_rows(TXN_INDEX) == [dict(zip(TXN_NAMES, row, strict=True)) for row in entries]
    title, names, *rows = dump(TXN_INDEX).stdout.splitlines()
    assert title == f"{TXN_INDEX}: transaction index, base offset 0, {len(entries)} entries"
    assert names.split() == TXN_NAMES
    assert [tuple(map(int, row.split())) for row in rows] == entries


def test_snapshot_has_a_row_per_producer() -> None:
    entries = list(struct.iter_unpack(ENTRY_FORM, SNAPSHOT.read_bytes()[10:]))
    assert len(entries) > 1
    assert json_rows(SNAPSHOT) == [dict(zip(ENTRY_NAMES, row, strict=True)) for row in entries]
    title, names, *rows = dump(SNAPSHOT).stdout.splitlines()
    count = f"{len(entries)} entries"
    assert title == f"{SNAPSHOT}: producer snapshot at offset {int(SNAPSHOT.stem)}, {count}"
    time = ENTRY_NAMES.index("timestamp_ms")
    assert names.split() == [*ENTRY_NAMES[:time], "timestamp", *ENTRY_NAMES[time + 1 :]]
    for row, entry in zip(rows, entries, strict=True):
        cells = row.split()
        assert cells.pop(time) == format_time(entry[time])
        assert [*map(int, cells)] == [*entry[:time], *entry[time + 1 :]]


def test_leader_epochs_have_a_row_per_epoch(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n4 368769\n")
    assert json_rows(path) == [
        {"epoch": 0, "start_offset": 0},
        {"epoch": 4, "start_offset": 368769},
    ]
    title, *lines = dump(path).stdout.splitlines()
    assert title == f"{path}: leader epochs, 2 entries"
    assert [line.split() for line in lines] == [
        ["epoch", "start_offset"],
        ["0", "0"],
        ["4", "368769"],
    ]


def test_state_files_of_a_real_partition_are_intact() -> None:
    files = [path for path in PARTITION.iterdir() if path.name != "partition.metadata"]
    result = dump("--json", *files)
    rows = len(result.stdout.splitlines())
    assert (result.returncode, result.stderr) == (0, f"{rows} rows of {len(files)} inputs\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{7:020d}.txnindex", b""),
        (f"{7:020d}.snapshot.deleted", snapshot_of()),
        ("leader-epoch-checkpoint", b"0\n0\n"),
        ("leader-epoch-checkpoint", b""),
    ],
)
def test_file_without_entries_has_no_rows(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert json_rows(path) == []


def txns(*rows: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack(TXN_FORM, *row) for row in rows)


GOOD = (0, 5, 100, 110, 111)


@pytest.mark.parametrize(
    ("content", "position", "message"),
    [
        (txns(GOOD, (256, 5, 111, 112, 113)), 34, "version .*expected 0, found 256"),
        (txns(GOOD, (0, 5, 98, 99, 113)), 34, "below the base offset .*100 or more, found 99"),
        (txns(GOOD, (0, 5, 100, 110, 112)), 34, "does not ascend .*above 110, found 110"),
        (txns(GOOD, (*GOOD[:3], 112, 113)) + b"12", 68, "inside an entry .*34 bytes, found 70"),
    ],
)
def test_damaged_transaction_index_is_printed_with_its_fault(
    content: bytes, position: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{100:020d}.txnindex"
    path.write_bytes(content)
    assert len(json_rows(path, code=1)) == 2
    check_damage(path, f"at byte {position}: .*{message}", f"corrupt at byte {position}: ")


@pytest.mark.parametrize(("stored", "shown"), [(1, 0), (2, 0), (255, 0), (-1, -1)])
def test_version_of_a_transaction_entry_is_its_first_byte(
    stored: int, shown: int, tmp_path: Path
) -> None:
    path = tmp_path / f"{100:020d}.txnindex"
    path.write_bytes(txns((stored, *GOOD[1:])))
    (row,) = json_rows(path)
    assert row["version"] == shown


ENTRY = (7, 0, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("content", "rows", "message"),
    [
        (
            b"\0\2" + snapshot_of(ENTRY)[2:],
            0,
            "at byte 0: the version of the snapshot is not supported .*expected 1, found 2",
        ),
        (snapshot_of(ENTRY)[:9], 0, "at byte 9: .*shorter than its header"),
        (snapshot_of(ENTRY, ENTRY, count=3), 2, "at byte 6: .*does not match its size"),
        (
            snapshot_of(ENTRY)[:2] + b"abcd" + snapshot_of(ENTRY)[6:],
            1,
            "at byte 2: the checksum of the snapshot does not match",
        ),
    ],
)
def test_damaged_snapshot_is_printed_up_to_the_damage(
    content: bytes, rows: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{100:020d}.snapshot"
    path.write_bytes(content)
    assert [tuple(row.values()) for row in json_rows(path, code=1)] == [ENTRY] * rows
    check_damage(path, message, "corrupt at byte ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n2\n0 0\n0 9\n", "line 4 of a checkpoint does not ascend .*above 0 0, found 0 9"),
        ("0\n2\n0 5\n1 5\n", "line 4 .*above 0 5, found 1 5"),
        ("0\n1\n-1 5\n", "line 3 .*found -1 5"),
        ("0\n1\n4 5 6\n", "line 3 of the checkpoint is malformed"),
        ("0\n1\n", "number of entries"),
        ("\xff", "not UTF-8"),
    ],
)
def test_damaged_checkpoint_is_reported_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(text.encode("latin-1"))
    check_damage(path, message, "")


def check_damage(path: Path, message: str, remark: str) -> None:
    result = dump(path)
    assert result.returncode == 1
    (line,) = listed(result)
    assert str(path) in line
    assert re.search(message, line)
    assert result.stdout == "" or result.stdout.splitlines()[-1].startswith(remark)
