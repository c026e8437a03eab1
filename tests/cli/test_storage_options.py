"""``--storage-option``: on every command, never with a secret; and how failures of stores end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_index.cli.app import COMMANDS
from kafka_index.core.fs.registry import configure_stores, storage_options
from kafka_index.core.fs.store import StorageOptions
from tests.core.fs.stores import s3_environment
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, Argument, run_here
from tests.support.remote import upload


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the stores of this process unconfigured."""
    yield
    configure_stores(StorageOptions())


NAMES = sorted({*COMMANDS, "backups list", "backups verify", "backups expire"} - {"backups"})


@pytest.mark.parametrize("name", NAMES)
def test_every_command_rejects_a_secret_and_does_not_repeat_it(name: str) -> None:
    result = run_here(*name.split(), "--storage-option", "secret_access_key=hidden", "/none")

    assert result.returncode == 2
    assert "secret_access_key=@FILE" in result.stderr
    assert "hidden" not in result.stdout + result.stderr


def test_options_configure_the_stores_of_the_process(tmp_path: Path) -> None:
    run_here("dump", tmp_path / "none.log", "--storage-option", "Region=eu-west-1")
    assert storage_options() == StorageOptions((("region", "eu-west-1"),))

    run_here("dump", tmp_path / "none.log")
    assert storage_options() == StorageOptions()


def test_secret_of_a_file_opens_the_store_and_is_shown_nowhere(
    s3: S3Server, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(s3.secret_key)
    with s3_environment(s3):
        root = upload(DUMP, f"s3://{s3.new_bucket()}")
    with s3_environment(s3, AWS_SECRET_ACCESS_KEY=None):
        configure_stores(StorageOptions())
        result = run_here(
            "build",
            *("--input", f"{root}/*", "--dry-run", "--verbose"),
            *("--storage-option", f"secret_access_key=@{secret}"),
        )

    assert result.returncode == 0, result.stderr
    assert s3.secret_key not in result.stdout + result.stderr


def test_store_that_denies_access_is_retriable(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if s3.kind != "versitygw":
        pytest.skip("moto accepts every secret")
    monkeypatch.setenv("KAFKA_INDEX_TRACEBACK", "1")
    wrong = "wrong-but-secret"
    with s3_environment(replace(s3, secret_key=wrong)):
        result = run_here("build", "--input", f"s3://{s3.new_bucket()}/a", "--dry-run")

    assert result.returncode == 3
    assert "denies access" in result.stderr
    # Not in the traceback either.
    assert wrong not in result.stderr
    assert "CanonicalRequest" not in result.stderr


def test_bucket_that_does_not_exist_is_wrong_usage(s3: S3Server) -> None:
    with s3_environment(s3):
        result = run_here("build", "--input", "s3://no-such-bucket-here/a", "--dry-run")

    assert result.returncode == 2
    assert "NoSuchBucket" in result.stderr


NOWHERE = "s3://no-such-bucket-here/a"


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "--input", DUMP, "--output", NOWHERE),
        ("build", "--input", NOWHERE, "--dry-run"),
        ("lookup", "--logs", NOWHERE, "--topic", "payments", "--partition", 0, "--offset", 5),
        (
            *("lookup", "--logs", DUMP, "--by", "offset", "--output", f"{NOWHERE}/b.csv"),
            *("--queries", "QUERIES"),
        ),
        ("lookup", "--logs", DUMP, "--by", "offset", "--queries", NOWHERE, "--output", "OUT"),
        ("verify", "--input", NOWHERE),
        ("verify", "--input", DUMP / "payments-0", "--report", f"{NOWHERE}.json"),
        ("verify", "--input", DUMP / "payments-0", "--indexes", NOWHERE),
        ("export", "--input", DUMP, "--topics", "payments", "--output", NOWHERE),
        ("export", "--input", NOWHERE, "--output", "OUT"),
        ("find", "--input", NOWHERE, "--key", "a"),
        ("cat", "orders", "--input", NOWHERE),
        ("dump", f"{NOWHERE}/00000000000000000000.log"),
        ("metadata", NOWHERE),
    ],
    ids=lambda given: " ".join(map(str, given[:1])),
)
def test_missing_bucket_is_wrong_usage_in_every_command(
    arguments: tuple[Argument, ...], s3: S3Server, tmp_path: Path
) -> None:
    (tmp_path / "queries.csv").write_text("topic,partition,offset\npayments,0,5\n")
    places: dict[Argument, Argument] = {
        "QUERIES": tmp_path / "queries.csv",
        "OUT": tmp_path / "out",
    }
    with s3_environment(s3):
        result = run_here(
            str(arguments[0]), *(places.get(argument, argument) for argument in arguments[1:])
        )

    assert result.returncode == 2, result.stdout + result.stderr
