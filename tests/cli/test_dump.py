import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kafka_index.core.records.batch_table import BATCH_SCHEMA
from tests.support.command_line import COMMAND, DUMP, dump, environment, json_rows, listed

PARTITION = DUMP / "payments-0"
LOG = sorted(PARTITION.glob("*.log"))[1]
BASE_OFFSET = int(LOG.stem)


def entries(path: Path, form: str) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(form, path.read_bytes()))


def test_offset_index_entries_are_absolute() -> None:
    index = LOG.with_suffix(".index")
    assert json_rows(index) == [
        {"offset": BASE_OFFSET + relative, "position_bytes": position}
        for relative, position in entries(index, ">ii")
    ]


def test_time_index_entries_are_absolute() -> None:
    index = LOG.with_suffix(".timeindex")
    assert json_rows(index) == [
        {"timestamp_ms": timestamp, "offset": BASE_OFFSET + relative}
        for timestamp, relative in entries(index, ">qi")
    ]


def test_log_has_a_row_per_batch_with_every_column() -> None:
    rows = json_rows(LOG)
    assert list(rows[0]) == BATCH_SCHEMA.names
    assert rows[0]["topic"] == "payments"
    assert rows[0]["segment_base_offset"] == rows[0]["base_offset"] == BASE_OFFSET
    position = 0
    content = LOG.read_bytes()
    for row in rows:
        base_offset, length = struct.unpack_from(">qi", content, position)
        crc, attributes = struct.unpack_from(">Ih", content, position + 17)
        result = (row["position_bytes"], row["size_bytes"], row["base_offset"], row["crc"])
        assert result == (position, 12 + length, base_offset, crc)
        assert row["attributes"] == attributes
        position += 12 + length
    assert position == len(content)
    assert {row["control_type"] for row in rows} == {None, 0, 1}


def test_dump_table_shows_file_kind_and_end() -> None:
    lines = dump(LOG).stdout.splitlines()
    assert lines[0].startswith(f"{LOG}: log, base offset {BASE_OFFSET}")
    assert "leader_epoch" in lines[1]
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert lines[-1] == f"{len(lines) - 3} batches up to the end of the file"


def test_dump_table_prints_attributes_as_words() -> None:
    table = dump(LOG).stdout
    assert "none+txn+control" in table
    assert "none+txn " in table


def test_several_files_are_printed_one_after_another() -> None:
    files = sorted(PARTITION.glob("*.index"))
    result = dump(*files)
    assert [line for line in result.stdout.splitlines() if "offset index" in line] == [
        f"{file}: offset index, base offset {int(file.stem)}, {file.stat().st_size // 8} entries"
        for file in files
    ]


@pytest.mark.parametrize("suffix", [".swap", ".cleaned", ".deleted"])
def test_files_with_swap_cleaned_and_deleted_suffixes_are_dumped(
    suffix: str, tmp_path: Path
) -> None:
    index = LOG.with_suffix(".index")
    copy = tmp_path / (index.name + suffix)
    shutil.copy(index, copy)
    assert json_rows(copy) == json_rows(index)


@pytest.mark.parametrize(("suffix", "entry_bytes"), [(".index", 8), (".timeindex", 12)])
def test_zero_tail_of_a_preallocated_index_is_distinguished(
    suffix: str, entry_bytes: int, tmp_path: Path
) -> None:
    index = LOG.with_suffix(suffix)
    copy = tmp_path / index.name
    size_bytes = 10_485_760 // entry_bytes * entry_bytes
    copy.write_bytes(index.read_bytes().ljust(size_bytes, b"\0"))
    assert json_rows(copy) == json_rows(index)
    count = (size_bytes - index.stat().st_size) // entry_bytes
    result = dump(copy)
    last_line = f"{count:,} preallocated entries of zeros at the end of the file"
    assert result.stdout.splitlines()[-1] == last_line


@pytest.mark.parametrize("content", [b"", bytes(800)])
def test_index_without_entries_has_no_rows(content: bytes, tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000000.index"
    index.write_bytes(content)
    assert json_rows(index) == []


def test_time_index_with_one_zero_entry_has_one_row(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000007.timeindex"
    index.write_bytes(bytes(12))
    assert json_rows(index) == [{"timestamp_ms": 0, "offset": 7}]


@pytest.mark.parametrize(
    ("name", "content", "position", "message"),
    [
        (".index", struct.pack(">6i", 5, 10, 5, 20, 9, 30), 8, "offset does not ascend"),
        (".index", struct.pack(">4i", 5, 20, 6, 10), 8, "position_bytes does not ascend"),
        (".index", struct.pack(">2i", -1, 20), 0, "offset is too small"),
        (".index", struct.pack(">3i", 5, 20, 6), 8, "ends inside an entry"),
        (".timeindex", struct.pack(">qiqi", 5, 1, 5, 2), 12, "timestamp_ms does not ascend"),
        (".timeindex", struct.pack(">qiqi", 5, 2, 6, 1), 12, "offset does not ascend"),
    ],
)
def test_damaged_index_is_printed_with_its_fault(
    name: str, content: bytes, position: int, message: str, tmp_path: Path
) -> None:
    index = tmp_path / f"00000000000000000100{name}"
    index.write_bytes(content)
    result = dump(index)
    assert result.returncode == 1
    (line,) = listed(result)
    assert f"{index}: at byte {position}: " in line
    assert message in line
    assert "expected" in line
    assert "found" in line
    as_json = dump("--json", index)
    rows = len(content) // (8 if name == ".index" else 12)
    assert len(as_json.stdout.splitlines()) == rows
    assert as_json.returncode == 1


def test_damaged_log_is_printed_up_to_the_damage(tmp_path: Path) -> None:
    copy = tmp_path / LOG.name
    content = bytearray(LOG.read_bytes())
    last = json_rows(LOG)[-1]
    position = last["position_bytes"]
    content[position + 30] ^= 1
    copy.write_bytes(content)
    result = dump(copy)
    assert result.returncode == 1
    assert f"ends at byte {position} of {len(content)}" in result.stdout.splitlines()[-1]
    (line,) = listed(result)
    assert f"{copy}: at byte {position}: " in line


def test_damage_in_one_file_does_not_hide_the_next(tmp_path: Path) -> None:
    bad = tmp_path / "00000000000000000000.index"
    bad.write_bytes(b"123")
    result = dump(bad, LOG.with_suffix(".index"))
    assert result.returncode == 1
    assert str(LOG.with_suffix(".index")) in result.stdout


@pytest.mark.parametrize(
    "name",
    ["notes.txt", "12.log", "00000000000000000000.checkpoint", "bootstrap.checkpoint"],
)
def test_unknown_kind_of_file_is_exit_code_2(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    result = dump(tmp_path / name)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


def test_missing_file_is_exit_code_2(tmp_path: Path) -> None:
    result = dump(LOG, tmp_path / LOG.name)
    assert (result.returncode, result.stdout) == (2, "")
    assert str(tmp_path / LOG.name) in result.stderr


def test_closed_pipe_is_not_an_error_of_dump() -> None:
    with subprocess.Popen(
        [*COMMAND, "dump", *[str(LOG)] * 400],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
