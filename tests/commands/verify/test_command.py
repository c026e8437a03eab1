"""``kafka-index verify``: output, report and exit code for local and remote dumps."""

from __future__ import annotations

import html
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_index import verify
from kafka_index.cli.exit_status import ExitCode
from kafka_index.commands.verify.result import VERIFY_SCHEMA, FileClass, FileKind, Verification
from tests.support.builds import finish, small_disk, start
from tests.support.child_processes import allow_other_users
from tests.support.command_line import (
    COMMAND,
    DUMP,
    Argument,
    copy_partitions,
    run_here,
    run_program,
)
from tests.support.gates import Gate, Step
from tests.support.remote import upload
from tests.support.restoring import copy_dump
from tests.support.segments import batch
from tests.support.tiered import SETTINGS, Setting, setting

PARTITION = "app-logs-0"
Row = dict[str, object]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of a broker that stopped cleanly, with one partition."""
    return copy_dump(tmp_path / "data", PARTITION)


def damage(data: Path) -> Path:
    """Flip the last byte of the first log."""
    path = min((data / PARTITION).glob("*.log"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def test_intact_dump_is_exit_code_0_with_a_conclusion(data: Path) -> None:
    result = run_here("verify", "--input", data)

    assert result.returncode == ExitCode.DONE, result.stderr
    assert "nothing harmful was found" in result.stdout


def test_damage_is_exit_code_1_with_file_byte_and_effect(data: Path) -> None:
    path = damage(data)

    result = run_here("verify", "--input", data)

    assert result.returncode == ExitCode.DAMAGE
    (line,) = [line for line in result.stdout.splitlines() if path.name in line]
    assert "bad_crc at byte" in line
    assert "Consumers cannot read past" in line


def test_headers_only_verification_reports_its_limits(data: Path) -> None:
    damage(data)

    result = run_here("verify", "--input", data, "--fast")

    assert result.returncode == ExitCode.DONE
    assert "wrong checksums" in result.stdout


def test_input_without_segments_is_exit_code_2(tmp_path: Path) -> None:
    assert run_here("verify", "--input", tmp_path).returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    "options", [(), ("--against", "x", "--fast"), ("--against", "x", "--indexes", "y")]
)
def test_contradictory_options_of_verify_are_exit_code_2(
    data: Path, options: tuple[str, ...]
) -> None:
    given = ("--input", data) if options else ()

    assert run_here("verify", *given, *options).returncode == ExitCode.USAGE


@pytest.mark.parametrize("ending", ["parquet", "json", "csv"])
def test_report_has_the_schema_of_the_rows(data: Path, tmp_path: Path, ending: str) -> None:
    report = tmp_path / f"report.{ending}"

    assert run_here("verify", "--input", data, "--report", report).returncode == ExitCode.DONE

    if ending == "parquet":
        assert pq.read_schema(report).equals(VERIFY_SCHEMA)
        kinds = pq.read_table(report).column("kind").to_pylist()
        assert kinds.count("partition") == 1
        assert kinds.count("root") == 6
    elif ending == "json":
        rows = [json.loads(line) for line in report.read_text().splitlines()]
        assert {tuple(row) for row in rows} == {tuple(VERIFY_SCHEMA.names)}


def test_built_files_in_another_folder_are_verified(data: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    assert run_here("build", "--input", data, "--output", built).returncode == ExitCode.DONE
    options = ("verify", "--input", data, "--indexes", built)
    assert run_here(*options).returncode == ExitCode.DONE

    index = min((built / PARTITION).glob("*.timeindex"))
    index.write_bytes(b"")

    result = run_here(*options)
    assert result.returncode == ExitCode.DAMAGE
    assert str(index) in result.stdout


def test_diverged_copies_are_exit_code_1(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    assert run_here("verify", "--input", data, "--against", other).returncode == ExitCode.DONE
    for path in (other / PARTITION).glob("*2117.log"):
        content = bytearray(path.read_bytes())
        content[17] ^= 1  # the checksum of the first batch
        path.write_bytes(content)

    result = run_here("verify", "--input", data, "--against", other)

    assert result.returncode == ExitCode.DAMAGE
    assert "different batches at offset 2117, with leader epochs 0 and 0" in result.stdout


def test_file_name_that_is_not_utf8_is_reported(data: Path, tmp_path: Path) -> None:
    name = os.fsencode(data / PARTITION) + b"/\xff\n.log"
    with open(name, "wb"):
        pass
    report = tmp_path / "report.parquet"

    result = run_here("verify", "--input", data, "--report", report)

    assert result.returncode == ExitCode.DAMAGE
    rows = pq.read_table(report).to_pylist()
    assert [row["class"] for row in rows if row["path"].endswith(".log") and row["harmful"]] == [
        "corrupt"
    ]


def test_log_changed_during_verification_is_reported_as_retriable(
    data: Path, tmp_path: Path
) -> None:
    path = max((data / PARTITION).glob("*.log"))
    gate = Gate(tmp_path / "gate", Step("open", path.name, 1))
    process = start("--input", data, "--threads", 1, command_name="verify", gate=gate)
    gate.wait(process)
    with path.open("ab") as file:
        file.write(b"x")
    gate.open()
    result = finish(process)

    assert result.returncode == ExitCode.ENVIRONMENT, result.stdout
    assert "could not be read, or changed while it was read" in result.stdout


def unprivileged(data: Path, tmp_path: Path) -> tuple[int, str, list[Row]]:
    """Verify without privileges; return the exit code, the output, and the report."""
    allow_other_users(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    report = out / "report.parquet"
    arguments = ("--input", data, "--report", report)
    result = finish(start(*arguments, command_name="verify", privileged=False))
    assert report.exists(), result.stderr
    return result.returncode, result.stdout, pq.read_table(report).to_pylist()


def of_kind(rows: list[Row], kind: FileKind) -> list[Row]:
    return [row for row in rows if row["kind"] == kind.value]


@pytest.mark.parametrize(("number", "logs_only"), [(0, True), (1, True), (1, False), (-1, False)])
def test_log_without_permission_is_retriable_and_not_damage(
    data: Path, tmp_path: Path, number: int, *, logs_only: bool
) -> None:
    if logs_only:
        for path in (data / PARTITION).iterdir():
            if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                path.unlink()
    log = sorted((data / PARTITION).glob("*.log"))[number]
    log.chmod(0)

    code, printed, rows = unprivileged(data, tmp_path)

    assert code == ExitCode.ENVIRONMENT, printed
    assert [row["path"] for row in rows if row["harmful"]] == []
    unread = [row["path"] for row in of_kind(rows, FileKind.LOG) if row["retriable"]]
    assert unread == [str(log)]
    (partition,) = of_kind(rows, FileKind.PARTITION)
    assert (partition["class"], partition["retriable"]) == (FileClass.UNREADABLE, True)
    assert f"{log.name}: log: unreadable" in printed


def test_files_without_permission_are_rows_and_the_run_continues(
    data: Path, tmp_path: Path
) -> None:
    log = max((data / PARTITION).glob("*.log"))
    paths = [log.with_suffix(each) for each in (".index", ".timeindex", ".txnindex", ".snapshot")]
    for path in paths:
        path.touch()
        path.chmod(0)

    code, printed, rows = unprivileged(data, tmp_path)

    assert code == ExitCode.ENVIRONMENT, printed
    result = {row["path"]: (row["class"], row["harmful"], row["retriable"]) for row in rows}
    assert [result[str(path)] for path in paths] == [(FileClass.UNREADABLE, False, True)] * 4
    assert of_kind(rows, FileKind.PARTITION)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_special_file_named_like_an_index_is_damage_without_waiting(
    data: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    log = min((data / PARTITION).glob("*.log"))
    paths = [log.with_suffix(each) for each in (".index", ".timeindex", ".txnindex")]
    for path in paths:
        path.unlink(missing_ok=True)
        make(path)

    code, printed, rows = unprivileged(data, tmp_path)

    assert code == ExitCode.DAMAGE, printed
    result = {(row["path"], row["class"], row["harmful"]) for row in rows}
    assert {(str(path), FileClass.UNREADABLE, True) for path in paths} <= result
    assert of_kind(rows, FileKind.PARTITION)


def test_snapshot_that_vanishes_is_retriable(data: Path, tmp_path: Path) -> None:
    path = max((data / PARTITION).glob("*.snapshot"))
    gate = Gate(tmp_path / "gate", Step("open", path.name, 1))
    process = start("--input", data, "--threads", 1, command_name="verify", gate=gate)
    gate.wait(process)
    path.unlink()
    gate.open()
    result = finish(process)

    assert result.returncode == ExitCode.ENVIRONMENT, result.stderr
    assert f"{path.name}: snapshot: unreadable" in result.stdout


def test_report_on_a_full_disk_is_retriable_and_keeps_the_older_one(
    data: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "4k") as disk:
        report = disk / "report.json"
        report.write_text("{}\n")

        result = run_here("verify", "--input", data, "--report", report)

        assert result.returncode == ExitCode.ENVIRONMENT, result.stdout
        assert "report" in result.stderr
        assert report.read_text() == "{}\n"
        assert [path.name for path in disk.iterdir()] == [report.name]


def test_full_scratch_disk_of_verify_is_retriable(data: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        result = run_program(
            *COMMAND, "verify", "--input", str(data), variables={"TMPDIR": str(disk)}
        )

    assert result.returncode == ExitCode.ENVIRONMENT, result.stderr
    assert "could not be read, or changed while it was read" in result.stdout
    assert "harmful file" not in result.stdout


def test_harmful_file_reports_expected_and_found(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    (log, *_) = sorted((DUMP / "payments-0").glob("*.timeindex"))
    (data / "payments-0" / log.name).write_bytes(log.read_bytes()[:-1])
    result = run_here("verify", "--input", data)
    size = log.stat().st_size - 1
    assert (
        f"timeindex: corrupt at byte {size - size % 12}: "
        f"expected a multiple of 12 bytes, found {size} bytes"
    ) in result.stdout


#: ``index.interval.bytes`` of the brokers' topics.
_INTERVAL = 600


def arguments(at: Setting) -> list[Argument]:
    pairs = [text for name, path in at.keys for text in ("--tiered-key", f"{name}={path}")]
    return ["--tiered", at.remote, *pairs, "--index-interval-bytes", _INTERVAL]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("has_directory", [True, False])
def test_uploaded_segments_are_valid_with_and_without_log_directory(
    name: str, *, has_directory: bool
) -> None:
    at = setting(name)
    local = ("--input", at.data) if has_directory else ()

    result = run_here("verify", *local, *arguments(at))

    assert result.returncode == ExitCode.DONE, result.stdout
    assert "identical" in result.stdout


def test_misleading_uploaded_index_is_reported() -> None:
    at = setting("local")
    indexes = sorted(Path(at.remote).rglob("*.timeindex"), key=lambda path: path.stat().st_size)
    path = indexes[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-12])
    try:
        result = run_here("verify", *arguments(at), "--input", at.data)
    finally:
        path.write_bytes(content)

    assert result.returncode == ExitCode.DAMAGE
    assert "timeindex: incomplete" in result.stdout


def classes(found: Verification) -> list[tuple[str, str, FileClass, bool]]:
    rows = [row for row in found.findings if row.topic is not None]
    return sorted(
        (Path(row.path).name, row.kind.value, row.file_class, row.harmful) for row in rows
    )


def test_verification_of_a_store_equals_local_verification(
    configured_bucket: str, tmp_path: Path
) -> None:
    data = copy_dump(tmp_path / "data", "payments-0")
    index = min((data / "payments-0").glob("*.index"))
    index.write_bytes(index.read_bytes()[:-3])
    log = max((data / "payments-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    uri = upload(data, f"{configured_bucket}/data")

    remote, local = verify([uri], threads=2), verify([data], threads=2)

    assert remote.is_harmful
    assert classes(remote) == classes(local)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_unread_entry_is_reported_equally_by_terminal_page_and_exit_code(
    data: Path, tmp_path: Path, kind: str
) -> None:
    folder = data / PARTITION
    if kind == "pipe":
        log = min(folder.glob("*.log"))
        # Without this segment, the log begins later.
        for path in folder.glob(f"{log.stem}.*"):
            path.unlink()
        os.mkfifo(log)
    else:
        index = max(folder.glob("*.timeindex"))
        index.rename(tmp_path / index.name)
        index.symlink_to(tmp_path / index.name)
    page = tmp_path / "page.html"

    result = run_here("verify", "--input", data, "--report", page)
    actual = verify(data)

    assert result.returncode == actual.outcome.exit_code == 1
    assert "nothing harmful was found" not in result.stdout
    conclusion = actual.conclusion.text
    assert "1 entry not read, such as " in conclusion
    assert conclusion in result.stdout
    text = page.read_text()
    assert f'<h1 id="verdict">{html.escape(conclusion)}</h1>' in text
    assert '<header class="bad">' in text


def test_headline_counts_the_listed_rows_before_the_next_command(data: Path) -> None:
    for path in sorted((data / PARTITION).glob("*.timeindex"))[:2]:
        path.write_bytes(path.read_bytes()[:-1])

    result = run_here("verify", "--input", data)

    title, *rows, _, conclusion, following = result.stdout.splitlines()[-7:]
    assert title == f"{conclusion}:" == "2 harmful files in 1 of 1 partition:"
    assert len(rows) == 3
    assert following.startswith(f"next: kafka-index restore --input {data} --output ")


@pytest.mark.parametrize("kind", ["a day ahead", "microseconds", "now"])
def test_future_timestamps_that_delay_retention_are_a_note(tmp_path: Path, kind: str) -> None:
    now = int(time.time() * 1000)
    timestamp_ms = {"a day ahead": now + 90_000_000, "microseconds": now * 1000, "now": now}[kind]
    folder = tmp_path / "data/orders-0"
    folder.mkdir(parents=True)
    for base_offset, latest in ((0, now), (3, timestamp_ms), (6, now)):
        log = batch(base_offset, 3, max_timestamp=latest)
        (folder / f"{base_offset:020d}.log").write_bytes(log)

    result = run_here("verify", "--input", tmp_path / "data")

    assert result.returncode == 0
    title = "timestamps in the future delay retention by time:"
    assert (title in result.stdout) is (kind != "now")
    assert (f"  orders: 1 segment, {len(log)} B" in result.stdout) is (kind != "now")
