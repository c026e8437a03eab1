"""Every command and function reads a run of a backup as it reads the directory it is of."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.core.errors import InputError
from kafka_index.core.fs.backup.manifest import backup_id_at
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import parse_backup_path
from tests.commands.backup.repositories import earlier_dump, make_backup
from tests.support.command_line import DUMP, ROOT, run_here

# In milliseconds, of the runs of the repository.
EARLIER, LATER = 1_763_000_000_000, 1_763_000_060_500
# Where the earlier run ends `payments-0`.
CUT_AT = 699
#: Columns that say where in a file something is, as files of a backup are other ones.
PLACES = {
    "position_bytes",
    "segment_base_offset",
    "entry_offset",
    "entry_position_bytes",
    "entry_timestamp_ms",
    "batch_position_bytes",
    "path",
    "log_path",
}


@contextmanager
def repository_of_dump(root: str, scratch: Path) -> Iterator[str]:
    """Take two runs of the example; the input that names the repository."""
    earlier = earlier_dump(scratch / "earlier", "payments-0", CUT_AT)
    make_backup(root, earlier, time_ms=EARLIER)
    make_backup(root, DUMP, time_ms=LATER)
    yield f"backup:{root}"


@pytest.fixture(scope="module", params=["local", "s3"])
def backup(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A repository with two runs, as an input."""
    scratch = tmp_path_factory.mktemp("backup")
    if request.param == "local":
        root = str(scratch / "repo@home" / "kafka")
    else:
        root = f"{request.getfixturevalue('module_bucket')}/backups/kafka"
    with repository_of_dump(root, scratch) as input_path:
        yield input_path


def without_paths(rows: Any) -> list[str]:
    """Return rows as sorted texts, without the places of what they tell of."""
    if isinstance(rows, pa.Table):
        rows = [
            dict(zip(rows.column_names, values, strict=True))
            for values in zip(*(_plain(column) for column in rows.columns), strict=True)
        ]
    rows_without_paths = (
        {name: value for name, value in row.items() if name not in PLACES} for row in rows
    )
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows_without_paths)


def _plain(column: pa.ChunkedArray) -> list[Any]:
    # Timestamps of the example are outside Python's.
    is_time = pa.types.is_timestamp(column.type)
    return list((column.cast(pa.int64()) if is_time else column).to_pylist())


def in_order(records: pa.Table) -> pa.Table:
    """Return records by topic, partition and offset."""
    ascending = [(name, "ascending") for name in ("topic", "partition", "offset")]
    return records.sort_by(ascending).combine_chunks()


def printed(command: str, *arguments: object) -> list[str]:
    """Run a command that prints JSON lines; what it printed, without places."""
    result = run_here(command, *map(str, arguments))
    assert result.returncode == 0, result.stderr
    assert "no_index" not in result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows
    return without_paths(rows)


@pytest.mark.parametrize(
    "run",
    [
        lambda input_path: printed("cat", "payments", "--input", input_path, "--format", "json"),
        lambda input_path: printed(
            "cat", "imported-history", "-p", 1, "--input", input_path, "--format", "json"
        ),
        lambda input_path: printed("find", "--input", input_path, "--key-regex", ".*7.*", "--json"),
        lambda input_path: printed("metadata", input_path, "--what", "partitions", "--json"),
        lambda input_path: printed("metadata", input_path, "--what", "groups", "--json"),
        lambda input_path: printed("metadata", input_path, "--what", "lag", "--json"),
        lambda input_path: printed("metadata", input_path, "--what", "transactions", "--json"),
        lambda input_path: printed("metadata", input_path, "--what", "producers", "--json"),
    ],
    ids=[
        "cat",
        "cat-old-format",
        "find",
        "partitions",
        "groups",
        "lag",
        "transactions",
        "producers",
    ],
)
def test_command_on_a_backup_equals_command_on_the_dump(
    run: Callable[[object], list[str]], backup: str
) -> None:
    assert run(backup) == run(DUMP)


def test_records_of_a_backup_equal_records_of_the_dump(backup: str) -> None:
    columns = [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "headers",
        "leader_epoch",
    ]
    actual, expected = (
        kafka_index.read_records(input_path, columns=columns, isolation="read_committed").read_all()
        for input_path in (backup, DUMP)
    )
    assert expected.num_rows > 50_000
    assert in_order(actual).equals(in_order(expected))


def test_lookups_in_a_backup_equal_lookups_in_the_dump(backup: str) -> None:
    draw = random.Random(7)
    names = [
        ("payments", 0),
        ("customer-profiles", 0),
        ("shipments.tracking", 0),
        ("reserved-for.later", 1),
    ]
    queries = [
        {"topic": topic, "partition": partition, "offset": draw.randrange(-3, 3000)}
        for topic, partition in names
        for _ in range(40)
    ]
    actual, expected = (
        kafka_index.lookup_offsets(input_path, queries, resolve="record")
        for input_path in (backup, DUMP)
    )
    assert without_paths(pa.table(actual)) == without_paths(pa.table(expected))

    times = kafka_index.read_records(DUMP, topics="payments|page-views").read_all()
    moments = times.column("timestamp").cast(pa.int64()).to_pylist()
    time_queries = [
        {
            "topic": topic,
            "partition": partition,
            "timestamp": draw.choice(moments) // 1000 + nudge,
        }
        for topic, partition in [*names, ("page-views", 1)]
        for nudge in (-1, 0, 1)
        for _ in range(10)
    ]
    actual, expected = (
        kafka_index.lookup_timestamps(input_path, time_queries, resolve="record")
        for input_path in (backup, DUMP)
    )
    assert without_paths(pa.table(actual)) == without_paths(pa.table(expected))


def test_verify_of_a_backup_reports_intact_logs(backup: str) -> None:
    actual, expected = kafka_index.verify(backup), kafka_index.verify(DUMP)
    assert actual.ok
    # Snapshots and index files are none of a backup, and whether they are there is no damage.
    logs = [
        sorted(
            {
                (row["topic"], row["partition"], row["class"])
                for row in result.to_arrow().to_pylist()
                if row["kind"] in ("log", "partition")
            }
        )
        for result in (actual, expected)
    ]
    assert logs[0] == logs[1]
    copies = run_here("verify", "--input", DUMP, "--against", backup)
    assert copies.returncode == 0
    assert "no harmful difference was found in 25 partitions" in copies.stdout


def test_export_of_a_backup_equals_export_of_the_dump(backup: str, tmp_path: Path) -> None:
    for name, input_path in (("backup", backup), ("dump", DUMP)):
        assert kafka_index.export_records(
            input_path, tmp_path / name, topics="payments|app-logs"
        ).ok
    actual, expected = (pq.read_table(tmp_path / name) for name in ("backup", "dump"))
    assert without_paths(actual) == without_paths(expected)
    # The export of a later run, or of the directory itself, goes on where that of a run ended.
    early = tmp_path / "early"
    first = kafka_index.export_records(
        f"{backup}@{backup_id_at(EARLIER)}", early, topics="payments|app-logs"
    )
    assert first.ok
    assert kafka_index.export_records(backup, early, topics="payments|app-logs").ok
    assert without_paths(pq.read_table(early)) == without_paths(expected)


def test_restored_backup_has_all_records_and_a_safe_start(backup: str, tmp_path: Path) -> None:
    output = tmp_path / "restored"
    assert kafka_index.restore_dump(backup, output).ok
    # All topics but the metadata log, which is a new one.
    actual, expected = (
        kafka_index.read_records(input_path, topics="(?!__cluster).*").read_all()
        for input_path in (output, DUMP)
    )
    assert in_order(actual).equals(in_order(expected))
    assert kafka_index.verify(output).ok
    assert kafka_index.predict(output).verdict == "safe"


def test_files_of_a_backup_are_dumped_by_their_path(backup: str) -> None:
    run = f"{backup}@{backup_id_at(LATER)}"
    actual = printed("dump", f"{run}/payments-0/*.log", "--records", "--json")
    expected = printed("dump", *sorted(DUMP.glob("payments-0/*.log")), "--records", "--json")
    assert actual == expected
    checkpoint = run_here("dump", f"{run}/replication-offset-checkpoint")
    assert "payments" in checkpoint.stdout
    records = kafka_index.read_records(f"{run}/payments-0").read_all()
    assert records.num_rows == kafka_index.read_records(DUMP / "payments-0").read_all().num_rows


def test_log_of_a_backup_is_the_concatenation_of_its_chunks(tmp_path: Path) -> None:
    root = str(tmp_path / "repo")
    with repository_of_dump(root, tmp_path):
        pass
    page = (ROOT / "docs" / "backup.md").read_text(encoding="utf-8")
    (script,) = (
        block for block in re.findall(r"```sh\n(.+?)```", page, re.DOTALL) if "jq" in block
    )
    for documented, replacement in (
        ("20261120T120000.000Z", backup_id_at(LATER)),
        ('"orders"', '"payments"'),
        ("data/orders-0-*", "data/payments-0-*"),
        ("> 0000", f"> {tmp_path}/0000"),
    ):
        assert documented in script
        script = script.replace(documented, replacement)
    if any(shutil.which(name) is None for name in ("zstd", "jq", "xxd", "base64")):
        pytest.skip("zstd, jq and xxd are not installed")
    subprocess.run(["sh", "-c", script], check=True, cwd=root)
    logs = sorted((DUMP / "payments-0").glob("*.log"))
    expected = b"".join(log.read_bytes() for log in logs)
    assert (tmp_path / "00000000000000000000.log").read_bytes() == expected


def test_build_reads_a_backup(backup: str, tmp_path: Path) -> None:
    assert kafka_index.build_indexes(backup, tmp_path / "indexes", topics="payments").ok
    with kafka_index.PartitionLog.open(
        f"{backup}/@{backup_id_at(LATER)}/payments-0", indexes=tmp_path / "indexes"
    ) as log:
        assert log.end_offset == 1574


@pytest.mark.parametrize(
    ("selector", "end"),
    [
        ("", 1574),
        (f"@{backup_id_at(EARLIER)}", CUT_AT),
        (f"@ms:{EARLIER}", CUT_AT),
        (f"@ms:{LATER - 1}", CUT_AT),
        ("@2025-11-13T02:14:20.5Z", 1574),
        ("@now", 1574),
    ],
)
def test_backup_is_selected_by_name_or_time(selector: str, end: int, backup: str) -> None:
    run = kafka_index.read_records(
        f"{backup}{selector}", topics="payments", partitions={"payments": [0]}
    )
    assert end - 50 < max(run.read_all().column("offset").to_pylist()) < end
    line = run_here(
        "lookup", "--input", f"{backup}{selector}", "--topics", "payments", "--at", "now"
    )
    assert f" {end} " in line.stdout


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (f"@ms:{EARLIER - 1}", "no complete backup at or before 2025-11-13T02:13:19.999Z"),
        ("@20200101T000000.000Z", "the repository has no backup 20200101T000000.000Z"),
        ("@some-day", "'some-day' is neither milliseconds nor a time"),
        ("/elsewhere", "not a repository of backups"),
    ],
)
def test_missing_backup_is_reported(selector: str, message: str, backup: str) -> None:
    with pytest.raises(InputError, match=message):
        kafka_index.read_records(f"{backup}{selector}")
    result = run_here("verify", "--input", f"{backup}{selector}")
    assert result.returncode == 2
    assert message in result.stderr


def test_rewrite_of_a_backup_is_rejected(backup: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("nobody\n")
    arguments = ("rewrite", "--input", backup, "--drop-keys", keys)
    result = run_here(*arguments, "--output", tmp_path / "out")
    assert result.returncode == 2
    assert "restore the backup and rewrite the restored directory" in result.stderr
    assert not (tmp_path / "out").exists()
    assert "0 of 66,676 records dropped" in run_here(*arguments, "--dry-run").stdout


def test_output_within_a_backup_is_rejected(backup: str) -> None:
    result = run_here("build", "--input", backup, "--in-place")
    assert result.returncode == 2
    assert "is in a store: give --output" in result.stderr
    root = backup.removeprefix("backup:")
    result = run_here("build", "--input", backup, "--output", f"{root}/indexes")
    assert result.returncode == 2
    assert "is inside the input" in result.stderr
    assert run_here("predict", "--input", backup).returncode == 2


def damaged(backup: str, tmp_path: Path, change: Callable[[str, bytes], None]) -> tuple[str, str]:
    """Change the first object of `payments-0` in a repository of one run; its input and path."""
    root = str(tmp_path / "repo")
    if backup.startswith("backup:s3"):
        root = (
            f"{backup.removeprefix('backup:')}-{hashlib.sha256(str(tmp_path).encode()).hexdigest()}"
        )
    cut = make_backup(root, DUMP, time_ms=EARLIER)
    partition = next(
        partition_backup
        for partition_backup in cut.partitions
        if partition_backup.topic == "payments"
    )
    path = f"{root}/{partition.folder}/{partition.chunks[0].object_name}"
    change(path, store_of(path).read(path))
    return f"backup:{root}", path


def truncate_object(path: str, data: bytes) -> None:
    """Cut an object."""
    store_of(path).put(path, data[:-10])


def alter_object(path: str, data: bytes) -> None:
    """Alter a byte within a record, whose batch then has a wrong checksum."""
    store_of(path).put(path, data[:-10] + bytes([data[-10] ^ 1]) + data[-9:])


def remove_object(path: str, _: bytes) -> None:
    """Remove an object."""
    store_of(path).delete([path])


MISSING = r"an object of backup 20251113T021320\.000Z is missing "
ALTERED = r"an object of backup 20251113T021320\.000Z is altered "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            remove_object,
            MISSING + r"\(expected \d+ bytes, found no object",
        ),
        (truncate_object, ALTERED + r"\(expected \d+ bytes, found \d+ bytes"),
        (
            alter_object,
            ALTERED + r"\(expected \w{8} as CRC-32, found \w{8} as CRC-32",
        ),
    ],
    ids=["missing", "cut", "altered"],
)
def test_missing_or_altered_object_is_reported_with_its_path(
    change: Callable[[str, bytes], None], message: str, backup: str, tmp_path: Path
) -> None:
    input_path, path = damaged(backup, tmp_path, change)
    result = kafka_index.verify(input_path, topics="payments")
    assert not result.ok
    told = [str(row) for row in result.to_arrow().to_pylist() if row["harmful"]]
    assert any(path in line for line in told), told
    restored = kafka_index.restore_dump(input_path, tmp_path / "out", topics="payments")
    told = [row["reason"] or "" for row in restored.to_arrow().to_pylist()]
    assert any(path in line and re.search(message, line) for line in told), told
    # Other partitions are read.
    assert kafka_index.read_records(input_path, topics="app-logs").read_all().num_rows


def test_backup_path_is_accepted_like_a_path() -> None:
    parsed = parse_backup_path("backup+s3://bucket/a/@20251113T021320.000Z/t-0/00.log")
    assert parsed == ("s3://bucket/a", "20251113T021320.000Z", "t-0/00.log")
    assert parse_backup_path("backup:///a@b/@20251113T021320.000Z") == (
        "/a@b",
        "20251113T021320.000Z",
        "",
    )
    assert parse_backup_path("backup:///a@b/t-0") is None
