"""``export``: what lies in the files, what a rerun adds, and what is refused."""

from __future__ import annotations

import csv
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import kafka_index
from kafka_index.commands.export.data_files import SplitFiles
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.core.errors import PublishError
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, Argument, run_here
from tests.support.record_tables import batch_of, rows_of, write_partition
from tests.support.remote import download, new_bucket, upload
from tests.support.segments import batch, marker

DAY_MS = 24 * 3600 * 1000
KEYS = ("topic", "partition", "offset")


def export(code: int, *arguments: Argument) -> str:
    result = run_here("export", *arguments)
    assert result.returncode == code, (result.stdout, result.stderr)
    return result.stdout + result.stderr


def exported(out: Path) -> pa.Table:
    """The rows of an export, sorted, as a reader of Hive's layout finds them."""
    partitioning = ds.HivePartitioning(
        pa.schema([("topic", pa.string()), ("partition", pa.int32())])
    )
    table = ds.dataset(out, format="parquet", partitioning=partitioning).to_table()
    return table.sort_by([(name, "ascending") for name in KEYS])


def read(path: Path, **options: Any) -> pa.Table:
    return kafka_index.read_records(path, **options).read_all()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.*") if not path.name.startswith("."))


def test_exported_files_contain_every_record_of_the_dump(tmp_path: Path) -> None:
    export(0, "--input", DUMP, "--output", tmp_path / "out")
    found, expected = exported(tmp_path / "out"), read(DUMP)
    assert found.select(expected.column_names).equals(expected)


def test_json_lines_encode_bytes_as_base64(tmp_path: Path) -> None:
    log = batch_of(0, [(1_000_000_000_123, b"\xff", None), (2**61, None, b"v")])
    write_partition(tmp_path / "dump", {0: log})
    columns = "offset,key,value,timestamp"
    out = tmp_path / "out"
    export(
        0, "--input", tmp_path / "dump", "--output", out, "--format", "jsonl", "--columns", columns
    )
    (file,) = out.rglob("*.jsonl")
    # A time that ISO 8601 cannot represent is its number.
    assert [json.loads(text) for text in file.read_text().splitlines()] == [
        {"offset": 0, "key": "/w==", "value": None, "timestamp": "2001-09-09T01:46:40.123Z"},
        {"offset": 1, "key": None, "value": "dg==", "timestamp": str(2**61)},
    ]
    assert file.parent == out / "topic=topic" / "partition=0"
    assert file.name == f"{0:020d}-{1:020d}.jsonl"


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_exported_records_are_imported_at_the_same_offsets(tmp_path: Path, form: str) -> None:
    # Among them are timestamps outside of the calendar, headers, nulls and compacted gaps.
    topics = "imported-history|orders.*|customer-profiles"
    out, logs = tmp_path / "out", tmp_path / "logs"
    export(0, "--input", DUMP, "--topics", topics, "--output", out, "--format", form)
    assert run_here("import", "--input", out, "--output", logs).returncode == 0
    columns = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    expected = read(DUMP, topics=topics, columns=columns)
    assert read(logs, columns=columns).equals(expected)


def test_time_range_selects_records_by_their_own_timestamps(tmp_path: Path) -> None:
    times = [50, 10, 40, 20, 30, 60, -1, 10]
    log = b"".join(
        batch_of(2 * at, [(times[2 * at], None, b"v"), (times[2 * at + 1], None, b"w")])
        for at in range(4)
    )
    write_partition(tmp_path / "dump", {0: log})
    # A record without a timestamp is before no time.
    for bounds, offsets in (
        (("--from", "ms:20", "--to", "ms:50"), [2, 3, 4]),
        (("--to", "ms:50"), [1, 2, 3, 4, 7]),
    ):
        out = tmp_path / f"out{len(bounds)}"
        export(0, "--input", tmp_path / "dump", "--output", out, *bounds)
        assert exported(out)["offset"].to_pylist() == offsets


def test_export_by_date_writes_a_folder_per_day(tmp_path: Path) -> None:
    days = [19_000 + number % 20 for number in range(200)]
    log = b"".join(batch_of(at, [(day * DAY_MS + at, None, b"v")]) for at, day in enumerate(days))
    write_partition(tmp_path / "dump", {0: log, 200: batch_of(200, [(2**61, None, b"no day")])})
    out = tmp_path / "out"
    export(0, "--input", tmp_path / "dump", "--output", out, "--by-date")
    table = ds.dataset(out, format="parquet", partitioning="hive").to_table()
    actual = dict(zip(table["offset"].to_pylist(), table["date"].to_pylist(), strict=True))
    expected: dict[int, str | None] = {
        at: str(pc.cast(pa.scalar(day, pa.int32()), pa.date32())) for at, day in enumerate(days)
    }
    assert actual == expected | {200: None}


def test_rerun_exports_only_new_records(tmp_path: Path) -> None:
    folder = write_partition(tmp_path / "dump", {0: batch(0, 3)})
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    export(0, *arguments)
    (first,) = (tmp_path / "out").rglob("*.parquet")
    before = first.read_bytes(), first.stat().st_mtime_ns
    assert "unchanged" in export(0, *arguments)
    log = folder / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + batch(3, 2))
    write_partition(tmp_path / "dump", {5: batch(5, 1)})
    export(0, *arguments)
    assert names(first.parent) == [
        f"{0:020d}-{2:020d}.parquet",
        f"{3:020d}-{5:020d}.parquet",
    ]
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    assert exported(tmp_path / "out")["offset"].to_pylist() == [0, 1, 2, 3, 4, 5]


def test_records_of_an_open_transaction_are_exported_once_it_ends(tmp_path: Path) -> None:
    opened = batch(0, 2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    folder = write_partition(tmp_path / "dump", {0: opened + batch(2, 1)})
    paths = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    arguments = (*paths, "--isolation", "read_committed")
    export(0, *arguments)
    assert not list((tmp_path / "out").rglob("*.parquet"))
    log = folder / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + marker(3, 7, 0, commit=True))
    export(0, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == [0, 1, 2]


def test_damaged_batch_is_skipped_and_exported_once_the_log_is_repaired(tmp_path: Path) -> None:
    sound = [batch(3 * number, 3) for number in range(4)]
    bad = batch(3, 3, crc=7)
    folder = write_partition(tmp_path / "dump", {0: sound[0] + bad, 6: sound[2] + sound[3]})
    write_partition(tmp_path / "dump", {0: batch(0, 1)}, "other-0")
    report = tmp_path / "report.csv"
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out", "--report", report)
    text = export(1, *arguments)
    assert "bad_crc" in text
    rows = {row["topic"]: row for row in csv.DictReader(report.read_text().splitlines())}
    assert rows["other"]["status"] == "exported"
    assert rows["topic"]["status"] == "damaged"
    assert rows["topic"]["skipped_ranges"] == "1"
    assert rows["topic"]["position_bytes"] == str(len(sound[0]))
    assert rows["topic"]["path"].endswith(f"{0:020d}.log")
    kept = [0, 1, 2, 6, 7, 8, 9, 10, 11]
    result = exported(tmp_path / "out")
    assert [row[2] for row in rows_of(result, *KEYS) if row[0] == "topic"] == kept
    # The damage is still there; then it is mended.
    export(1, *arguments)
    (folder / f"{0:020d}.log").write_bytes(sound[0] + sound[1])
    export(0, *arguments)
    result = exported(tmp_path / "out")
    assert [row[2] for row in rows_of(result, *KEYS) if row[0] == "topic"] == list(range(12))
    assert "unchanged" in export(0, *arguments)


def test_rerun_counts_damage_at_the_log_end_once(tmp_path: Path) -> None:
    write_partition(tmp_path / "dump", {0: batch(0, 3) + batch(3, 3, crc=7)})
    report = tmp_path / "report.csv"
    for _ in range(2):
        export(1, "--input", tmp_path / "dump", "--output", tmp_path / "out", "--report", report)
        (row,) = csv.DictReader(report.read_text().splitlines())
        assert (row["status"], row["skipped_ranges"]) == ("damaged", "1")


def test_duplicate_batch_after_the_exported_end_is_damage_as_in_a_first_export(
    tmp_path: Path,
) -> None:
    sound = batch(0, 3) + batch(3, 3)
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    write_partition(tmp_path / "dump", {0: sound})
    export(0, *arguments)
    write_partition(tmp_path / "dump", {0: sound + batch(3, 3)})
    # The title of the list, and the conclusion.
    assert export(1, *arguments).count("1 corrupt range skipped") == 2
    assert "overlap" in export(1, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == list(range(6))


def test_batch_above_the_memory_limit_is_not_exported(tmp_path: Path) -> None:
    large = batch_of(1, [(1000, None, bytes(100_000))], 1)
    write_partition(tmp_path / "dump", {0: batch(0, 1) + large})
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    text = export(1, *arguments, "--max-decompressed-bytes", 50_000)
    assert "--max-decompressed-bytes" in text
    export(0, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == [0, 1]


@pytest.mark.parametrize(
    "text", ['{"t": {"0": 2, "1": -2}}', "t,0,2\nt,1,-2\n", "topic,partition,offset\nt,0,2\nt,1,-2"]
)
def test_offsets_file_sets_the_first_exported_offset_of_each_partition(
    tmp_path: Path, text: str
) -> None:
    for number in range(2):
        write_partition(tmp_path / "dump", {0: batch(0, 4)}, f"t-{number}")
    offsets = tmp_path / "offsets"
    offsets.write_text(text)
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out", "--offsets", offsets)
    export(0, *arguments)
    rows = rows_of(exported(tmp_path / "out"), "partition", "offset")
    assert rows == [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    export(0, *arguments)
    offsets.write_text("t,0,1\nt,1,-2\n")
    assert "another starting offset" in export(2, *arguments)


@pytest.mark.parametrize(("offset", "reason"), [(4, "3 or less"), (-1, "the latest offset")])
def test_starting_offset_outside_the_log_is_rejected(
    tmp_path: Path, offset: int, reason: str
) -> None:
    write_partition(tmp_path / "dump", {0: batch(0, 3)}, "t-0")
    (tmp_path / "offsets").write_text(json.dumps({"t": {"0": offset}}))
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    assert reason in export(2, *arguments, "--offsets", tmp_path / "offsets")
    assert not list(_data(tmp_path / "out"))
    export(0, *arguments)
    assert len(list(_data(tmp_path / "out"))) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"t": {"0": 2}}', "have different partitions"),
        ("t,0,1\nt,1,1\nu,0,1\n", "have different partitions"),
        ('{"t": {"0": 2, "0": 3}}', "listed twice"),
        ("t,0\n", "not a file of offsets"),
        ("t,0,soon\n", "not a file of offsets"),
        ("t,0,1_0\n", "not a file of offsets"),
        ("t,\u0660,1\n", "not a file of offsets"),
        (f"t,0,{'9' * 5000}\n", "not a file of offsets"),
        ('{"t": {"0_0": 2}}', "not a file of offsets"),
        ("", "contains no offsets"),
    ],
)
def test_offsets_file_without_exactly_one_line_per_partition_is_rejected(
    tmp_path: Path, text: str, reason: str
) -> None:
    for number in range(2):
        write_partition(tmp_path / "dump", {0: batch(0, 4)}, f"t-{number}")
    (tmp_path / "offsets").write_text(text)
    out = tmp_path / "out"
    arguments = ("--input", tmp_path / "dump", "--output", out, "--offsets", tmp_path / "offsets")
    assert reason in export(2, *arguments)
    assert not list(out.rglob("*.parquet"))


@pytest.mark.parametrize(
    "changed",
    [
        ("--format", "jsonl"),
        ("--columns", "offset"),
        ("--by-date",),
        ("--isolation", "read_committed"),
        ("--from", "ms:1"),
        ("--to", "ms:2"),
    ],
)
def test_export_with_other_options_is_rejected_for_an_existing_output(
    tmp_path: Path, changed: tuple[Argument, ...]
) -> None:
    write_partition(tmp_path / "dump", {0: batch(0, 3)})
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    export(0, *arguments)
    refused = export(2, *arguments, *changed)
    assert f"exported with another value of {changed[0]} (expected " in refused
    assert "to continue that export, or give another --output" in refused


def test_export_with_another_start_date_reports_both_dates(tmp_path: Path) -> None:
    write_partition(tmp_path / "dump", {0: batch(0, 3)})
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out", "--from")
    export(0, *arguments, "2024-05-01")
    assert (
        "another value of --from (expected 2024-05-01T00:00:00.000Z, found "
        "2024-05-02T00:00:00.000Z); give --from 2024-05-01T00:00:00.000Z to continue that export, "
        "or give another --output"
    ) in export(2, *arguments, "2024-05-02")
    assert "found none); give --from 2024-05-01" in export(2, *arguments[:-1])
    export(0, *arguments, "2024-05-01T00:00:00.000Z")


def test_rerun_resolves_relative_times_as_the_first_run_did(tmp_path: Path) -> None:
    now = time.time_ns() // 1_000_000
    logs = [batch_of(at, [(now - 60_000 * (9 - at), None, b"v")]) for at in range(4)]
    write_partition(tmp_path / "dump", {0: b"".join(logs[:2])})
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out", "--to", "now")
    export(0, *arguments)
    # It is later than the end of the first run, and would be passed over for good.
    later = batch_of(2, [(now + 3_600_000, None, b"v")])
    write_partition(tmp_path / "dump", {0: b"".join([*logs[:2], later, *logs[3:]])})
    assert "the time of the first run of this export determines now" in export(0, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == [0, 1, 3]
    other = (*arguments[:4], "--to", "-1s")
    assert "exported with another value of" in export(2, *other)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (("--from", "2024-05-02"), "after all records of the input"),
        (("--to", "2024-05-01"), "before the first record of the input"),
    ],
)
def test_empty_time_range_of_an_export_reports_the_existing_times(
    tmp_path: Path, given: tuple[Argument, ...], place: str
) -> None:
    may = 1_714_521_600_000
    log = b"".join(batch_of(at, [(may + at, None, b"v")]) for at in (0, 5))
    write_partition(tmp_path / "dump", {0: log})
    text = export(0, "--input", tmp_path / "dump", "--output", tmp_path / "out", *given)
    assert f"is {place}: the first record is from 2024-05-01T00:00:00.000Z" in text


def test_partition_marked_for_deletion_is_skipped_and_reported(tmp_path: Path) -> None:
    write_partition(tmp_path / "dump", {0: batch(0, 3)})
    (tmp_path / "dump" / "old-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    text = export(0, "--input", tmp_path / "dump", "--output", tmp_path / "out")
    assert "the partition is marked for deletion" in text


def test_recreated_topic_is_not_appended_to_the_old_export(tmp_path: Path) -> None:
    folder = write_partition(tmp_path / "dump", {0: batch(0, 3)})
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    metadata = folder / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: cOIe6YzkQ7aGvWRbVVBsMA\n")
    export(0, *arguments)
    metadata.write_text("version: 0\ntopic_id: iZmXcmI0QxmJ6WTnOHXXhg\n")
    write_partition(tmp_path / "dump", {0: batch(0, 9)})
    assert "created again" in export(1, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == [0, 1, 2]


def test_folder_with_foreign_data_files_is_rejected(tmp_path: Path) -> None:
    write_partition(tmp_path / "dump", {0: batch(0, 3)})
    foreign = tmp_path / "out" / "topic=topic" / "partition=0" / f"{0:020d}-{9:020d}.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"not ours")
    text = export(2, "--input", tmp_path / "dump", "--output", tmp_path / "out")
    assert "the folder contains this data file, but no state file of an export" in text
    assert foreign.read_bytes() == b"not ours"


@pytest.mark.parametrize("columns", ["topic", "topic,partition", "offset,offset", "ofset"])
def test_invalid_columns_of_an_export_are_rejected_before_writing(
    tmp_path: Path, columns: str
) -> None:
    write_partition(tmp_path / "dump", {0: batch(0, 3)})
    out = tmp_path / "out"
    export(2, "--input", tmp_path / "dump", "--output", out, "--columns", columns)
    assert not out.exists()


def test_output_inside_the_input_is_rejected(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch(0, 3)})
    assert "is inside the input" in export(2, "--input", tmp_path, "--output", tmp_path / "out")


def _data(out: Path) -> Iterator[Path]:
    return out.rglob("*.parquet")


def test_export_between_buckets_equals_a_local_export(tmp_path: Path, s3: S3Server) -> None:
    dump = tmp_path / "dump"
    write_partition(dump, {0: batch(0, 3), 3: batch(3, 2)}, indexed=True)
    export(0, "--input", dump, "--output", tmp_path / "out")
    with new_bucket(s3) as bucket:
        arguments = ("--input", upload(dump, f"{bucket}/dump"), "--output", f"{bucket}/out")
        export(0, *arguments)
        assert "unchanged" in export(0, *arguments)
        stored = download(f"{bucket}/out")
    (data,) = _data(tmp_path / "out")
    assert stored[str(data.relative_to(tmp_path / "out"))] == data.read_bytes()
    assert len(stored) == 2


def test_rerun_keeps_rows_of_deleted_segments(tmp_path: Path) -> None:
    sound = [batch(3 * number, 3) for number in range(4)]
    folder = write_partition(
        tmp_path / "dump",
        {0: sound[0], 3: batch(3, 3, crc=7), 6: sound[2], 9: sound[3]},
    )
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    export(1, *arguments)
    (folder / f"{0:020d}.log").unlink()
    (folder / f"{3:020d}.log").write_bytes(sound[1])
    export(0, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == [0, 1, 2, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("then", ["damaged", "missing"])
def test_rerun_keeps_rows_whose_log_was_damaged_or_deleted_later(tmp_path: Path, then: str) -> None:
    sound = [batch(3 * number, 3) for number in range(4)]
    folder = write_partition(
        tmp_path / "dump",
        {0: sound[0], 3: batch(3, 3, crc=7), 6: sound[2] + sound[3]},
    )
    arguments = ("--input", tmp_path / "dump", "--output", tmp_path / "out")
    export(1, *arguments)
    (folder / f"{3:020d}.log").write_bytes(sound[1])
    last = folder / f"{6:020d}.log"
    last.unlink() if then == "missing" else last.write_bytes(sound[2] + batch(9, 3, crc=7))
    export(1, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    # A complete copy supersedes it.
    last.write_bytes(sound[2] + sound[3])
    export(0, *arguments)
    assert exported(tmp_path / "out")["offset"].to_pylist() == list(range(12))


def test_unfinished_data_files_are_all_removed_if_none_can_be_written(tmp_path: Path) -> None:
    settings = ExportSettings(str(tmp_path), columns=("offset", "timestamp"), by_date=True)
    days = pa.array([0, 1, 2, 3])
    times = pc.multiply(days, 24 * 3600 * 1000).cast(settings.file_schema.field("timestamp").type)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        with SplitFiles(str(tmp_path), settings, "attempt") as files:
            files.write(pa.record_batch([days, times], schema=settings.file_schema))
            # The footers of the files do not fit.
            resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
            files.finish()

    try:
        with pytest.raises(PublishError):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
