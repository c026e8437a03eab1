"""Restores with ``--drop-keys``: what was erased since the dump does not come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index.commands.restore.output import STATE_FILE
from kafka_index.core.errors import ConfigError, InputError
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.support.campaign import sample_size
from tests.support.command_line import SETTINGS, Argument, run_here
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.record_tables import write_partition
from tests.support.restoring import MARKER, contents, copy_dump, damage, logs, restore
from tests.support.segments import marker

NAMES = ("customer-profiles-0", "imported-history-0", "page-views-1", "payments-0", "payments-1")
INTERNAL = ("__consumer_offsets-0", "__transaction_state-0", "__cluster_metadata-0")
_RANDOM_CASES = sample_size(60, one_in=20)
_NEVER = 1_000_000
_SEVENTH = 7
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "is_control")


def rows(root: Path) -> list[dict[str, Any]]:
    """The records of users' topics."""
    reader = kafka_index.read_records(root, columns=_COLUMNS, include_control=True)
    table = reader.read_all()
    # There are more of them than Python's times.
    times = table["timestamp"].cast("int64")
    result = table.set_column(3, "timestamp", times).to_pylist()
    return [row for row in result if not row["topic"].startswith("__")]


def without_keys(found: list[dict[str, Any]], keys: list[bytes]) -> list[dict[str, Any]]:
    dropped = set(keys)
    return [row for row in found if row["is_control"] or row["key"] not in dropped]


def keys_of(root: Path) -> list[bytes]:
    """A seventh of the keys of users' topics, and all of an internal one."""
    result = {row["key"] for row in rows(root) if not row["is_control"]} - {None}
    groups = kafka_index.read_records(root, topics="__consumer_offsets", columns=["key"])
    return [*sorted(result)[::_SEVENTH], *set(groups.read_all()["key"].to_pylist())]


def file_of(folder: Path, keys: list[bytes]) -> Path:
    path = folder / "keys.txt"
    path.write_text("".join(f"hex:{key.hex()}\n" for key in keys))
    return path


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_dump(tmp_path_factory.mktemp("dropping") / "dump", *NAMES, *INTERNAL)


@pytest.fixture(scope="module")
def keys(dump: Path) -> list[bytes]:
    return keys_of(dump)


@pytest.fixture(scope="module")
def plain_files(dump: Path, keys: list[bytes]) -> dict[str, bytes]:
    """The files of a restore that nothing interrupts."""
    output = dump.parent / "plain_files"
    run = restore(dump, output, "--drop-keys", file_of(dump.parent, keys))
    assert run.code == 0, run.done.stdout + run.done.stderr
    return contents(output)


def test_restore_with_drop_keys_equals_a_restored_rewrite(
    dump: Path, keys: list[bytes], plain_files: dict[str, bytes], tmp_path: Path
) -> None:
    path = file_of(tmp_path, keys)
    clean = run_here(
        "rewrite", "--input", dump, "--output", tmp_path / "clean", "--drop-keys", path
    )
    assert clean.returncode == 0, clean.stderr
    restore(tmp_path / "clean", tmp_path / "out")
    both = contents(tmp_path / "out")
    names = {name for name in plain_files if name.startswith(NAMES)}
    assert names == {name for name in both if name.startswith(NAMES)}
    assert [name for name in sorted(names) if plain_files[name] != both[name]] == []
    logs_of = [name for name in names if name.endswith(".log")]
    assert any(plain_files[name] != (dump / name).read_bytes() for name in logs_of)


@pytest.mark.parametrize("link", ["copy", "hard"])
def test_other_records_keep_their_offsets_and_the_dump_is_unchanged(
    dump: Path, keys: list[bytes], plain_files: dict[str, bytes], tmp_path: Path, link: str
) -> None:
    before = contents(dump)
    run = restore(
        *(dump, tmp_path / "out", "--drop-keys", file_of(tmp_path, keys)),
        *("--link", link, "--threads", 2),
    )
    assert run.code == 0, run.done.stderr
    assert contents(dump) == before
    assert rows(tmp_path / "out") == without_keys(rows(dump), keys)
    result = contents(tmp_path / "out")
    assert {name: result[name] for name in plain_files} == plain_files
    for name in INTERNAL[:2]:
        assert {path.name for path in logs(tmp_path / "out" / name)}
        for log in logs(dump / name):
            assert result[f"{name}/{log.name}"] == log.read_bytes()
    assert "\nsafe" in run_here("predict", "--input", tmp_path / "out").stdout
    assert run_here("verify", "--input", tmp_path / "out").returncode == 0


def test_number_of_dropped_records_is_in_rows_summary_and_runbook(
    dump: Path, keys: list[bytes], tmp_path: Path
) -> None:
    path, out = file_of(tmp_path, keys), tmp_path / "out"
    run = restore(dump, out, "--drop-keys", path, "--summary", tmp_path / "summary.json")
    expected = len(rows(dump)) - len(without_keys(rows(dump), keys))
    assert expected
    by_row = {f"{row['topic']}-{row['partition']}": row["dropped"] for row in run.rows}
    assert sum(filter(None, by_row.values())) == expected
    assert by_row["__consumer_offsets-0"] is None
    text = f"{expected:,} records dropped by key in {sum(map(bool, by_row.values()))} partitions"
    assert run.done.stdout.count(text) == 2
    assert "nothing lost, except the records to drop" in run.done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["counts"]["records_dropped"] == expected
    # The last keys are of an internal topic, which is restored as it is.
    unmatched = summary["counts"]["keys_unmatched"]
    assert (summary["counts"]["keys"], unmatched > 0) == (len(keys), True)
    assert "dropped records by line of the key file:\n  line 1: " in run.done.stdout
    assert f"no record has the key in {unmatched} line" in run.done.stdout
    page = tmp_path / "restore.html"
    result = run_here(
        *("restore", "--input", dump, "--output", tmp_path / "paged", "--drop-keys", path),
        *("--report", page),
    )
    assert result.returncode == 0, result.stderr
    assert "nothing lost, except the records to drop" in page.read_text()


def test_keys_of_no_record_are_reported(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("nobody\n")
    run = restore(dump, tmp_path / "out", "--drop-keys", tmp_path / "keys.txt")
    assert run.code == 0
    assert run.done.stdout.count("no record has a key of --drop-keys") == 2
    restore(dump, tmp_path / "plain")
    assert contents(tmp_path / "out") == contents(tmp_path / "plain")


@pytest.mark.parametrize("text", ["", "\n\n", "hex:0\n", "base64:!\n"])
def test_key_files_that_a_rewrite_rejects_are_rejected(
    dump: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "keys.txt").write_text(text)
    run = restore(dump, tmp_path / "out", "--drop-keys", tmp_path / "keys.txt")
    second_result = run_here(
        *("rewrite", "--input", dump, "--output", tmp_path / "out"),
        *("--drop-keys", tmp_path / "keys.txt"),
    )
    assert run.code == second_result.returncode == 2
    errors = [done.stderr.partition(" (see ")[0] for done in (run.done, second_result)]
    assert errors[0] == errors[1] != ""
    assert not (tmp_path / "out").exists()


def test_list_of_keys_equals_a_key_file(
    dump: Path, keys: list[bytes], plain_files: dict[str, bytes], tmp_path: Path
) -> None:
    given: list[list[str | bytes] | Path] = [[*keys], file_of(tmp_path, keys)]
    for number, drop_keys in enumerate(given):
        output = tmp_path / str(number)
        result = kafka_index.restore_dump(dump, output, drop_keys=drop_keys, config=SETTINGS)
        assert result.ok
        assert result.counts["records_dropped"] == sum(
            partition.dropped or 0 for partition in result.partitions
        )
        assert {name: contents(output)[name] for name in plain_files} == plain_files
    for wrong, kind in (([], InputError), (7, ConfigError), ([7], ConfigError)):
        with pytest.raises(kind):
            kafka_index.restore_dump(dump, tmp_path / "no", drop_keys=wrong)  # type: ignore[arg-type]


def test_log_end_of_until_does_not_depend_on_dropped_keys(
    dump: Path, keys: list[bytes], tmp_path: Path
) -> None:
    ends = {"payments-0": 400, "payments-1": 700, "customer-profiles-0": 300}
    lines = [f"{name.rpartition('-')[0]},{name[-1]},{end}\n" for name, end in ends.items()]
    (tmp_path / "offsets.csv").write_text("".join(lines))
    until = ("--until", tmp_path / "offsets.csv", "--clamp-groups")
    plain = restore(dump, tmp_path / "plain", *until)
    run = restore(dump, tmp_path / "out", *until, "--drop-keys", file_of(tmp_path, keys))
    assert run.code == plain.code == 0, run.done.stderr

    def facts(found: list[dict[str, Any]]) -> list[tuple[object, ...]]:
        names = ("status", "log_start_offset", "log_end_offset", "last_epoch", "committed_offset")
        return [(row["topic"], row["partition"], *map(row.get, names)) for row in found]

    assert facts(run.rows) == facts(plain.rows)
    assert rows(tmp_path / "out") == without_keys(rows(tmp_path / "plain"), keys)
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "plain" / name).read_text()


@pytest.mark.parametrize("part", ["plain_files", "until"])
def test_backup_is_restored_without_the_keys(
    dump: Path, keys: list[bytes], tmp_path: Path, part: str
) -> None:
    repository = tmp_path / "repository"
    result = run_here("backup", "--input", dump, "--output", repository)
    assert result.returncode == 0, result.stderr
    more: list[Argument] = []
    if part == "until":
        times = sorted(row["timestamp"] for row in rows(dump) if row["topic"] == "payments")
        more = ["--until", f"ms:{times[len(times) // 2]}", "--create-time", "--consistent"]
    source = f"backup:{repository}"
    plain = restore(source, tmp_path / "plain", *more)
    run = restore(source, tmp_path / "out", *more, "--drop-keys", file_of(tmp_path, keys))
    assert run.code == plain.code == 0, run.done.stderr + plain.done.stderr
    ends = [
        {(row["topic"], row["partition"]): row["log_end_offset"] for row in found.rows}
        for found in (run, plain)
    ]
    assert ends[0] == ends[1]
    kept_rows = rows(tmp_path / "plain")
    assert rows(tmp_path / "out") == without_keys(kept_rows, keys)
    assert len(without_keys(kept_rows, keys)) < len(kept_rows)
    assert (len(kept_rows) < len(rows(dump))) == (part == "until")
    for name in INTERNAL[:2]:
        found, expected = (contents(tmp_path / each / name) for each in ("out", "plain"))
        assert found == expected


def batch(base_offset: int, *keys: bytes, **fields: Any) -> bytes:
    records = [Record(1_700_000_000_000, key, b"v") for key in keys]
    return write_record_batch(records, base_offset, BatchFields(leader_epoch=0, **fields))


def one_partition(folder: Path, *segments: bytes) -> Path:
    """A dump of one partition whose segments have ten offsets each."""
    parts = {10 * number: data for number, data in enumerate(segments)}
    write_partition(folder / "dump", parts, "t-0")
    (folder / "dump/t-0/partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n"
    )
    (folder / "dump/t-0/leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return folder / "dump"


def test_segments_that_lose_all_or_no_records_are_restored(tmp_path: Path) -> None:
    first, second = batch(0, *[b"k"] * 10), batch(10, *[b"drop"] * 10)
    third = batch(20, b"k", *[b"drop"] * 9)
    source = one_partition(tmp_path, first, second, third, batch(30, b"drop"))
    run = restore(source, tmp_path / "out", "--drop-keys", file_of(tmp_path, [b"drop"]))
    assert run.code == 0, run.done.stderr
    result = logs(tmp_path / "out/t-0")
    assert [log.name for log in result] == [log.name for log in logs(source / "t-0")]
    assert result[0].read_bytes() == first
    assert result[1].read_bytes() == b""
    # The last batch of the log stays, empty, so that the log ends where it did.
    assert run.rows[0]["log_end_offset"] == 31
    assert [row["offset"] for row in rows(tmp_path / "out")] == [*range(10), 20]
    assert run.rows[0]["dropped"] == 20
    assert result[2].stat().st_mtime_ns == logs(source / "t-0")[2].stat().st_mtime_ns


def test_transactions_and_producers_are_kept(tmp_path: Path) -> None:
    producer: dict[str, Any] = {"producer_id": 9, "producer_epoch": 1, "is_transactional": True}
    log = b"".join(
        [
            batch(0, b"drop", base_sequence=0, **producer),
            batch(1, b"k", base_sequence=1, **producer),
            marker(2, 9, 1, commit=True),
            batch(3, b"drop", base_sequence=2, **producer),
            batch(4, *[b"k"] * 6),
        ]
    )
    source = one_partition(tmp_path, log, batch(10, b"k"))
    plain = restore(source, tmp_path / "plain")
    run = restore(source, tmp_path / "out", "--drop-keys", file_of(tmp_path, [b"drop"]))
    assert run.code == plain.code == 0, run.done.stderr
    assert [row["offset"] for row in rows(tmp_path / "out")] == [1, 2, *range(4, 11)]
    snapshots = {
        name: data
        for name, data in contents(tmp_path / "plain").items()
        if name.endswith((".snapshot", "leader-epoch-checkpoint"))
    }
    assert snapshots
    assert {name: contents(tmp_path / "out")[name] for name in snapshots} == snapshots


def test_partition_with_an_unreadable_record_to_drop_is_skipped(tmp_path: Path) -> None:
    packed = bytearray(batch(10, *[b"k"] * 10, compression="gzip"))
    # The checksum is right: nothing else than dropping reads the records.
    import google_crc32c  # noqa: PLC0415

    packed[75] ^= 0xFF
    packed[17:21] = google_crc32c.value(bytes(packed[21:])).to_bytes(4, "big")
    source = one_partition(tmp_path, batch(0, *[b"k"] * 10), bytes(packed))
    assert restore(source, tmp_path / "plain").code == 0
    run = restore(source, tmp_path / "out", "--drop-keys", file_of(tmp_path, [b"drop"]))
    assert run.code == 1
    (row,) = run.rows
    assert (row["status"], row["reason_code"]) == ("skipped", "keys_not_dropped")
    assert "a record that cannot be read may have a key" in row["reason"]
    assert f"{source}/t-0/{10:020d}.log" in row["reason"]
    assert not (tmp_path / "out/t-0").exists()


def test_batches_of_another_copy_are_restored_without_the_keys(
    keys: list[bytes], tmp_path: Path
) -> None:
    name = "payments-0"
    first, second = (copy_dump(tmp_path / each, name) for each in ("first", "second"))
    damage(logs(first / name)[0])
    path = file_of(tmp_path, keys)
    run = restore(first, tmp_path / "out", "--input", second, "--drop-keys", path)
    assert run.code == 0, run.done.stdout
    assert rows(tmp_path / "out") == without_keys(rows(second), keys)


def test_salvaged_partition_is_restored_without_the_keys(keys: list[bytes], tmp_path: Path) -> None:
    source = copy_dump(tmp_path / "dump", "payments-0")
    damage(logs(source / "payments-0")[0])
    how = ("--salvage", "batches")
    plain = restore(source, tmp_path / "plain", *how)
    run = restore(source, tmp_path / "out", *how, "--drop-keys", file_of(tmp_path, keys))
    assert run.code == plain.code == 1
    assert run.lost == plain.lost
    assert rows(tmp_path / "out") == without_keys(rows(tmp_path / "plain"), keys)


@pytest.mark.parametrize("number", range(_RANDOM_CASES))
def test_killed_restore_is_completed_only_with_the_same_keys(
    dump: Path, keys: list[bytes], plain_files: dict[str, bytes], tmp_path: Path, number: int
) -> None:
    path = file_of(tmp_path, keys)

    def command(output: Path) -> list[Argument]:
        arguments = ("restore", "--input", dump, "--config", SETTINGS, "--threads", 1, "--quiet")
        return [*arguments, "--drop-keys", path, "--output", output]

    out = tmp_path / "out"
    with KilledRuns(*command(tmp_path / "warm-up")) as runs:
        counted = tmp_path / "counted"
        calls = runs.failing(counted, _NEVER, Failure.KILL, *command(counted)).calls
        killed = runs.run(out, 1 + number * calls // _RANDOM_CASES, *command(out))
    if not killed or (out / MARKER).exists():
        return
    for log in out.glob("[a-z]*-[0-9]/*.log"):
        # What has its name is whole.
        assert log.read_bytes() == plain_files[str(log.relative_to(out))]
    if (out / STATE_FILE).exists():
        (tmp_path / "other").write_text("other\n")
        other = restore(dump, out, "--drop-keys", tmp_path / "other")
        assert other.code == 2
        assert "another input or other options" in other.done.stderr
    run = restore(dump, out, "--drop-keys", path)
    assert run.code == 0, run.done.stderr
    assert {name: contents(out)[name] for name in plain_files} == plain_files
