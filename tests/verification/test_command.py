"""``kafka-index verify``: what it prints, reports, and exits with, of local and remote dumps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_index import verify
from kafka_index.cli.run_end import ExitCode
from kafka_index.verification import VERIFY_SCHEMA, FileClass, Verification
from tests.support.builds import small_disk
from tests.support.command_line import (
    COMMAND,
    DUMP,
    Argument,
    copy_partitions,
    environment,
    run_here,
    run_program,
)
from tests.support.gates import Gate, Step
from tests.support.remote import upload
from tests.support.restoring import copy_dump
from tests.support.tiered import SETTINGS, Setting, setting
from tests.support.timeouts import TIMEOUT_SECONDS

PARTITION = "app-logs-0"


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


def test_a_sound_dump_exits_with_0_and_says_so(data: Path) -> None:
    done = run_here("verify", "--input", data)

    assert done.returncode == ExitCode.DONE, done.stderr
    assert "nothing harmful was found" in done.stdout


def test_damage_exits_with_1_and_names_file_byte_and_effect(data: Path) -> None:
    path = damage(data)

    done = run_here("verify", "--input", data)

    assert done.returncode == ExitCode.DAMAGE
    (line,) = [line for line in done.stdout.splitlines() if path.name in line]
    assert "bad_crc at byte" in line
    assert "Consumers are stuck" in line


def test_headers_alone_say_what_they_do_not_show(data: Path) -> None:
    damage(data)

    done = run_here("verify", "--input", data, "--fast")

    assert done.returncode == ExitCode.DONE
    assert "a wrong checksum" in done.stdout


def test_nothing_found_exits_with_2(tmp_path: Path) -> None:
    assert run_here("verify", "--input", tmp_path).returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    "options", [(), ("--against", "x", "--fast"), ("--against", "x", "--indexes", "y")]
)
def test_options_that_do_not_go_together_exit_with_2(data: Path, options: tuple[str, ...]) -> None:
    given = ("--input", data) if options else ()

    assert run_here("verify", *given, *options).returncode == ExitCode.USAGE


@pytest.mark.parametrize("ending", ["parquet", "json", "csv"])
def test_the_report_has_the_schema_of_the_rows(data: Path, tmp_path: Path, ending: str) -> None:
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


def test_files_of_a_build_are_verified_where_it_has_written_them(
    data: Path, tmp_path: Path
) -> None:
    built = tmp_path / "built"
    assert run_here("build", "--input", data, "--output", built).returncode == ExitCode.DONE
    given = ("verify", "--input", data, "--indexes", built)
    assert run_here(*given).returncode == ExitCode.DONE

    index = min((built / PARTITION).glob("*.timeindex"))
    index.write_bytes(b"")

    done = run_here(*given)
    assert done.returncode == ExitCode.DAMAGE
    assert str(index) in done.stdout


def test_copies_that_diverged_exit_with_1(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    assert run_here("verify", "--input", data, "--against", other).returncode == ExitCode.DONE
    for path in (other / PARTITION).glob("*2117.log"):
        content = bytearray(path.read_bytes())
        content[17] ^= 1  # the checksum of the first batch
        path.write_bytes(content)

    done = run_here("verify", "--input", data, "--against", other)

    assert done.returncode == ExitCode.DAMAGE
    assert "diverged at offset 2117 under epochs 0 and 0" in done.stdout


def test_a_name_that_is_not_text_is_reported(data: Path, tmp_path: Path) -> None:
    name = os.fsencode(data / PARTITION) + b"/\xff\n.log"
    with open(name, "wb"):
        pass
    report = tmp_path / "report.parquet"

    done = run_here("verify", "--input", data, "--report", report)

    assert done.returncode == ExitCode.DAMAGE
    rows = pq.read_table(report).to_pylist()
    assert [row["class"] for row in rows if row["path"].endswith(".log") and row["harmful"]] == [
        "corrupt"
    ]


def test_a_log_that_changes_meanwhile_is_named_and_worth_a_retry(
    data: Path, tmp_path: Path
) -> None:
    path = max((data / PARTITION).glob("*.log"))
    gate = Gate(tmp_path / "gate", Step("open", path.name, 1))
    process = subprocess.Popen(
        [*COMMAND, "verify", "--input", str(data), "--threads", "1"],
        env=gate.on_the_way_of(environment()),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    gate.wait(process)
    with path.open("ab") as file:
        file.write(b"x")
    gate.open()
    out, _ = process.communicate(timeout=TIMEOUT_SECONDS)

    assert process.returncode == ExitCode.ENVIRONMENT, out
    assert "could not be read, or changed meanwhile" in out


@pytest.mark.parametrize(
    "step",
    [
        Step("open", ".log", 1),
        Step("open", ".snapshot", 2),
        Step("os.rename", "report.parquet", 1),
    ],
    ids=lambda step: f"{step.ending}-{step.count}",
)
def test_a_killed_run_leaves_no_report(data: Path, tmp_path: Path, step: Step) -> None:
    report = tmp_path / "out" / "report.parquet"
    report.parent.mkdir()
    report.write_bytes(b"an older one")
    gate = Gate(tmp_path / "gate", step)
    process = subprocess.Popen(
        [*COMMAND, "verify", "--input", str(data), "--report", str(report), "--threads", "1"],
        env=gate.on_the_way_of(environment()),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    gate.wait(process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_SECONDS)

    assert report.read_bytes() == b"an older one"


def test_a_report_that_finds_no_room_is_worth_a_retry_and_leaves_the_older_one(
    data: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "4k") as disk:
        report = disk / "report.json"
        report.write_text("{}\n")

        done = run_here("verify", "--input", data, "--report", report)

        assert done.returncode == ExitCode.ENVIRONMENT, done.stdout
        assert "report" in done.stderr
        assert report.read_text() == "{}\n"
        assert [path.name for path in disk.iterdir()] == [report.name]


def test_no_room_for_what_files_should_be_is_worth_a_retry(data: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        done = run_program(
            *COMMAND, "verify", "--input", str(data), variables={"TMPDIR": str(disk)}
        )

    assert done.returncode == ExitCode.ENVIRONMENT, done.stderr
    assert "could not be read, or changed meanwhile" in done.stdout
    assert "harmful file" not in done.stdout.replace("0 with harmful files", "")


def test_a_harmful_file_says_what_was_expected_and_found(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    (log, *_) = sorted((DUMP / "payments-0").glob("*.timeindex"))
    (data / "payments-0" / log.name).write_bytes(log.read_bytes()[:-1])
    done = run_here("verify", "--input", data)
    size = log.stat().st_size - 1
    assert (
        f"timeindex: corrupt at byte {size - size % 12}: "
        f"expected a multiple of 12 bytes, found {size} bytes"
    ) in done.stdout


#: ``index.interval.bytes`` of the brokers' topics.
_INTERVAL = 600


def arguments(at: Setting) -> list[Argument]:
    pairs = [text for name, path in at.keys for text in ("--tiered-key", f"{name}={path}")]
    return ["--tiered", at.remote, *pairs, "--index-interval-bytes", _INTERVAL]


@pytest.mark.parametrize("name", SETTINGS)
def test_what_brokers_uploaded_is_right(name: str) -> None:
    at = setting(name)

    done = run_here("verify", "--input", at.data, *arguments(at))

    assert done.returncode == ExitCode.DONE, done.stdout
    assert "identical" in done.stdout


@pytest.mark.parametrize("name", SETTINGS)
def test_remote_segments_are_verified_without_the_directory_of_a_broker(name: str) -> None:
    done = run_here("verify", *arguments(setting(name)))

    assert done.returncode == ExitCode.DONE, done.stdout
    assert "identical" in done.stdout


def test_an_uploaded_index_that_leads_astray_is_found() -> None:
    at = setting("local")
    indexes = sorted(Path(at.remote).rglob("*.timeindex"), key=lambda path: path.stat().st_size)
    path = indexes[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-12])
    try:
        done = run_here("verify", *arguments(at), "--input", at.data)
    finally:
        path.write_bytes(content)

    assert done.returncode == ExitCode.DAMAGE
    assert "timeindex: incomplete" in done.stdout


def classes(found: Verification) -> list[tuple[str, str, FileClass, bool]]:
    rows = [row for one in found.partitions for row in one.findings]
    return sorted(
        (Path(row.path).name, row.kind.value, row.file_class, row.harmful) for row in rows
    )


def test_rows_are_those_of_the_same_files_on_a_disk(configured_bucket: str, tmp_path: Path) -> None:
    data = copy_dump(tmp_path / "data", "payments-0")
    index = min((data / "payments-0").glob("*.index"))
    index.write_bytes(index.read_bytes()[:-3])
    log = max((data / "payments-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    uri = upload(data, f"{configured_bucket}/data")

    remote, local = verify([uri], threads=2), verify([data], threads=2)

    assert remote.is_harmful
    assert classes(remote) == classes(local)
