"""Dumps in an object store, and in tiered storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server
from tests.support.command_line import run_here
from tests.support.remote import new_bucket, upload
from tests.support.restoring import contents, copy_dump, restore
from tests.support.tiered import setting

PARTITIONS = ("payments-0", "shipments.tracking-0", "audit.trail-0")


@pytest.fixture
def places(s3: S3Server, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    dump = copy_dump(tmp_path / "dump", *PARTITIONS)
    with new_bucket(s3) as bucket:
        yield dump, upload(dump, f"{bucket}/dump")


def test_dump_in_a_bucket_is_restored_like_a_local_dump(
    tmp_path: Path, places: tuple[Path, str]
) -> None:
    dump, uri = places
    restore(dump, tmp_path / "local")

    result = run_here("restore", "--input", uri, "--output", tmp_path / "remote")

    assert result.returncode == 0, result.stdout + result.stderr
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")


def test_output_in_a_bucket_is_rejected(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0")

    assert run_here("restore", "--input", dump, "--output", "s3://bucket/out").returncode == 2


@pytest.mark.parametrize("name", ["local", "aiven-zstd"])
def test_remote_and_local_segments_are_restored_as_one_log(tmp_path: Path, name: str) -> None:
    at = setting(name)

    result = run_here(
        "restore", "--input", at.data, "--tiered", at.remote, "--output", tmp_path / "out"
    )

    assert result.returncode == 0, result.stdout + result.stderr
    prediction = run_here("predict", "--input", tmp_path / "out")
    assert "\nsafe" in prediction.stdout, prediction.stdout
    built = tmp_path / "built"
    run_here("build", "--input", at.data, "--tiered", at.remote, "--output", built)
    ours = contents(tmp_path / "out")
    indexes = {
        path: data for path, data in contents(built).items() if path.endswith((".index", ".log"))
    }
    assert indexes
    assert {path: ours.get(path) for path in indexes} == indexes
