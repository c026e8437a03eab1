"""``dump`` of files in S3 and HDFS: what it prints of the same files on a local disk."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_index.core.fs.registry import configure_stores, store_of
from kafka_index.core.fs.store import StorageOptions
from tests.core.fs.stores import s3_environment
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, dump
from tests.support.remote import upload

PARTITION = "payments-0"
SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot", ".log")
OPTIONS: list[list[str]] = [[], ["--json"]]


@pytest.fixture
def remote(bucket: str) -> str:
    return upload(DUMP / PARTITION, f"{bucket}/dump/{PARTITION}")


def assert_same_output(options: list[str], here: Path, there: str, names: list[str]) -> None:
    """Compare what is printed of files of two folders."""
    local = dump(*options, *(here / name for name in names))
    stored = dump(*options, *(f"{there}/{name}" for name in names))
    assert stored.returncode == local.returncode
    assert stored.stdout.replace(there, str(here)) == local.stdout
    assert stored.stderr.replace(there, str(here)) == local.stderr


def names_of(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    result = sorted(path.name for path in folder.iterdir() if path.name.endswith(suffixes))
    assert {Path(name).suffix for name in result} == set(suffixes)
    return result


@pytest.mark.parametrize("options", [*OPTIONS, ["--no-verify-crc"]])
def test_dump_from_a_store_prints_every_kind_of_file(remote: str, options: list[str]) -> None:
    names = names_of(DUMP / PARTITION, SUFFIXES)
    assert_same_output(options, DUMP / PARTITION, remote, [*names, "leader-epoch-checkpoint"])


@pytest.mark.parametrize("options", OPTIONS)
def test_dump_from_a_store_prints_records(remote: str, options: list[str]) -> None:
    assert_same_output(
        ["--records", *options], DUMP / PARTITION, remote, names_of(DUMP / PARTITION, (".log",))
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_dump_from_a_store_reports_damage(tmp_path: Path, bucket: str, options: list[str]) -> None:
    here = shutil.copytree(DUMP / PARTITION, tmp_path / PARTITION)
    names = names_of(here, SUFFIXES)
    for name in names:
        content = bytearray((here / name).read_bytes())
        content[len(content) // 2] ^= 0xFF
        (here / name).write_bytes(content[:-3])
    there = upload(here, f"{bucket}/{PARTITION}")
    assert dump(*options, here / names[0]).returncode == 1
    assert_same_output(options, here, there, names)


def test_input_on_hdfs_is_read(hdfs: HdfsServer) -> None:
    names = names_of(DUMP / PARTITION, SUFFIXES)
    there = upload(DUMP / PARTITION, f"{hdfs.uri}/dumped/{PARTITION}")
    assert_same_output(["--json"], DUMP / PARTITION, there, names)
    assert dump(f"{there}/*.timeindex").stdout.count("time index") == 3
    missing = dump(f"{there}/00000000000000000007.log")
    assert (missing.returncode, "no such file" in missing.stderr) == (2, True)


def test_glob_without_a_match_lists_what_can_be_dumped(remote: str) -> None:
    stored = dump(f"{remote}/*")
    assert stored.returncode == 0, stored.stderr
    printed = [line for line in stored.stdout.splitlines() if line.startswith(remote)]
    dumped = names_of(DUMP / PARTITION, SUFFIXES)
    assert [line.removeprefix(f"{remote}/").split(":")[0] for line in printed] == [
        *dumped,
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("00000000000000000007.log", "no such file"),
        ("other.txt", "the kind of the file is unknown"),
        ("", "the kind of the file is unknown"),
        ("*.txt", "the kind of the file is unknown"),
        ("*.none", "no path matches"),
    ],
)
def test_dump_of_a_missing_object_is_wrong_usage(remote: str, name: str, reason: str) -> None:
    store_of(remote).put(f"{remote}/other.txt", b"?")
    result = dump(f"{remote}/{name}")
    assert (result.returncode, result.stdout) == (2, "")
    assert reason in result.stderr


def test_dump_accepts_the_storage_options_of_other_commands(s3: S3Server, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(s3.secret_key)
    with s3_environment(s3):
        root = upload(DUMP / PARTITION, f"s3://{s3.new_bucket()}/{PARTITION}")
    log = f"{root}/{names_of(DUMP / PARTITION, ('.log',))[0]}"
    try:
        with s3_environment(s3, AWS_SECRET_ACCESS_KEY=None):
            given = dump(log, "--storage-option", f"secret_access_key=@{secret}")
        if s3.kind == "versitygw":
            with s3_environment(replace(s3, secret_key=s3.secret_key[::-1])):
                denied = dump(log)
            assert (denied.returncode, "denies access" in denied.stderr) == (3, True)
    finally:
        configure_stores(StorageOptions())
    assert (given.returncode, given.stderr) == (0, "93 rows of 1 input\n")
    assert s3.secret_key not in given.stdout
