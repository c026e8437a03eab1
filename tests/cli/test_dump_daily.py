"""Dumps as they are asked for by hand: some rows, directories, checkpoints, on a terminal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

from tests.support.command_line import DUMP, Argument, copy_partitions, dump, json_rows
from tests.support.terminals import run_on_a_terminal

PARTITION = DUMP / "payments-0"
LOG = sorted(PARTITION.glob("*.log"))[1]
BATCHES = json_rows(LOG)
RECORDS = json_rows("--records", LOG)
MIDDLE = BATCHES[len(BATCHES) // 2]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def shown(columns: int, *arguments: Argument) -> list[str]:
    """Return the lines that a dump prints on a terminal of this width."""
    return list(map(unstyle, run_on_a_terminal(columns, "dump", *arguments)))


# ------------------------------------------------------------------------------------ some rows


def test_dump_of_an_offset_prints_its_batch_or_record() -> None:
    offset = MIDDLE["base_offset"] + 1
    assert json_rows(LOG, "--offset", offset) == [MIDDLE]
    assert offsets(json_rows("--records", LOG, "--offset", offset)) == [offset]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_dump_of_an_offset_prints_the_floor_index_entry(suffix: str) -> None:
    index = LOG.with_suffix(suffix)
    entries = json_rows(index)
    offset = MIDDLE["last_offset"]
    expected = [entry for entry in entries if entry["offset"] <= offset][-1:]
    assert expected
    assert json_rows(index, "--offset", offset) == expected


def test_dump_of_an_offset_prints_transactions_that_span_it() -> None:
    index = LOG.with_suffix(".txnindex")
    entries = json_rows(index)
    offset = entries[0]["last_offset"]
    assert json_rows(index, "--offset", offset) == [
        entry for entry in entries if entry["first_offset"] <= offset <= entry["last_offset"]
    ]


def test_dump_of_a_time_range_prints_its_records_and_batches() -> None:
    start, end = MIDDLE["base_timestamp_ms"], MIDDLE["max_timestamp_ms"] + 1
    arguments = ("--from", start, "--to", end)
    expected = [row for row in RECORDS if start <= row["timestamp_ms"] < end]
    assert json_rows("--records", LOG, *arguments) == expected
    batches = json_rows(LOG, *arguments)
    assert MIDDLE in batches
    assert batches == [
        row
        for row in BATCHES
        if row["max_timestamp_ms"] >= start and row["base_timestamp_ms"] < end
    ]


def test_dump_of_a_time_prints_the_first_entry_at_or_after_it() -> None:
    time = MIDDLE["max_timestamp_ms"]
    expected = next(row for row in RECORDS if row["timestamp_ms"] >= time)
    assert json_rows("--records", LOG, "--time", time) == [expected]
    (entry,) = json_rows(LOG.with_suffix(".timeindex"), "--time", time)
    assert entry["timestamp_ms"] >= time


def test_dump_limit_applies_to_each_file() -> None:
    assert json_rows(LOG, "--limit", 3) == BATCHES[:3]
    assert json_rows("--records", LOG, "--limit", 3) == RECORDS[:3]
    assert len(json_rows(*sorted(PARTITION.glob("*.index")), "--limit", 2)) == 6
    assert dump(LOG, "--limit", 3).stdout.splitlines()[-1] == "stopped after 3 rows (--limit)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PARTITION / "leader-epoch-checkpoint", "--offset", 1), "--offset requires .log"),
        ((LOG.with_suffix(".index"), "--from", "ms:1"), "--from, --to and --at require .log"),
        ((PARTITION, "--offset", 1), "require files, not a directory"),
        ((LOG, "--time", "ms:1", "--limit", 2), "--at excludes"),
        ((LOG.with_suffix(".index"), "--records"), "--records requires a .log"),
        ((LOG, "--keys", "hex"), "require --records"),
        ((LOG, "--values", "hex"), "require --records"),
        ((LOG, "--from", "tomorrow"), "tomorrow"),
    ],
)
def test_dump_option_without_meaning_for_the_file_is_rejected(
    arguments: tuple[Argument, ...], message: str
) -> None:
    result = dump(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


# ---------------------------------------------------------------------------------- directories


def test_dump_of_a_directory_prints_a_line_per_segment() -> None:
    logs = sorted(PARTITION.glob("*.log"))
    rows = json_rows(PARTITION)
    assert [row["base_offset"] for row in rows] == [int(log.stem) for log in logs]
    second = rows[1]
    assert second == {
        "topic": "payments",
        "partition": 0,
        "base_offset": BATCHES[0]["base_offset"],
        "next_offset": BATCHES[-1]["last_offset"] + 1,
        "first_timestamp_ms": BATCHES[0]["base_timestamp_ms"],
        "max_timestamp_ms": max(row["max_timestamp_ms"] for row in BATCHES),
        "size_bytes": LOG.stat().st_size,
        "batches": len(BATCHES),
        "codecs": "none+lz4",
        "damage": None,
    }
    assert len(json_rows(DUMP)) == len(list(DUMP.glob("*/*.log")))


def test_dump_of_a_directory_reports_damage(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path, "payments-0")
    log = sorted(data.glob("*/*.log"))[1]
    content = bytearray(log.read_bytes())
    content[MIDDLE["position_bytes"] + 70] ^= 1
    log.write_bytes(content)
    result = dump(data)
    assert result.returncode == 1
    place = f"bad_crc at byte {MIDDLE['position_bytes']}"
    assert [line.endswith(place) for line in result.stdout.splitlines()[2:5]] == [
        False,
        True,
        False,
    ]
    assert f"{log}: at byte {MIDDLE['position_bytes']}: bad_crc" in result.stderr


# ---------------------------------------------------------------------------------- checkpoints


def test_dump_prints_checkpoint_entries_as_rows() -> None:
    rows = json_rows(DUMP / "replication-offset-checkpoint")
    assert {"topic": "payments", "partition": 1, "offset": 1816} in rows
    result = dump(DUMP / "recovery-point-offset-checkpoint")
    assert result.returncode == 0, result.stderr


def test_dump_prints_properties_as_rows() -> None:
    (version, topic_id) = json_rows(PARTITION / "partition.metadata")
    assert (version["name"], version["value"]) == ("version", "0")
    assert topic_id["name"] == "topic_id"
    names = {row["name"] for row in json_rows(DUMP / "meta.properties")}
    assert {"node.id", "version"} <= names


def test_malformed_checkpoints_and_properties_are_damage(tmp_path: Path) -> None:
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n2\npayments 0 7\n")
    metadata = tmp_path / "partition.metadata"
    shutil.copy(PARTITION / "partition.metadata", metadata)
    metadata.write_text(metadata.read_text().replace("version: 0", "version:0"))
    result = dump(checkpoint, metadata)
    assert result.returncode == 1
    assert "recovery-point-offset-checkpoint" in result.stderr
    assert "the partition metadata is malformed" in result.stderr


# ------------------------------------------------------------------------------------- terminals


def test_dump_table_prints_timestamps_as_dates() -> None:
    line = dump(LOG, "--limit", 1).stdout.splitlines()
    assert "max_timestamp " in line[1] + " "
    assert "2026-11-21T07:25:18.778Z" in line[2]
    record = dump("--records", LOG, "--limit", 1).stdout.splitlines()
    assert "2026-11-21T07:25:18.772Z" in record[2]


def test_dump_table_fits_the_terminal_without_wide_option() -> None:
    lines = shown(80, LOG, "--limit", 2)
    assert max(map(len, lines[1:])) <= 80
    columns = ["position_bytes", "size_bytes", "base_offset", "last_offset"]
    assert columns in [line.split()[:4] for line in lines]
    assert lines[-2].endswith("columns hidden; use --wide to print all columns")
    wide = shown(80, LOG, "--limit", 2, "--wide")
    (header,) = [line for line in wide if line.startswith("position_bytes")]
    assert header.endswith("control_timestamp")


def test_dump_shortens_records_at_the_terminal_width() -> None:
    lines = shown(80, "--records", LOG, "--limit", 2)
    cut = [line for line in lines if line.endswith("…")]
    assert {len(line) for line in cut} == {80}


def test_table_in_a_file_has_all_columns() -> None:
    header = dump(LOG, "--limit", 1).stdout.splitlines()[1]
    assert "control_timestamp" in header
