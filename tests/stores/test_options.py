"""Options of stores: parsing, and that secrets never travel by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.errors import ConfigError, InputError
from kafka_index.stores import StorageOptions, parse_storage_options
from kafka_index.stores.object_config import ObjectConfig


def test_values_are_kept_under_lower_case_keys() -> None:
    options = parse_storage_options(["Endpoint=http://127.0.0.1:9000", "region=eu-west-1"])

    assert options == StorageOptions(
        (("endpoint", "http://127.0.0.1:9000"), ("region", "eu-west-1"))
    )


def test_a_secret_is_a_reference_until_it_is_resolved(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hidden\n")

    options = parse_storage_options([f"secret_access_key=@{file}"])

    assert "hidden" not in repr(options)
    assert options.resolve() == {"secret_access_key": "hidden"}


@pytest.mark.parametrize("key", ["secret_access_key", "aws_session_token", "account_key"])
def test_a_secret_by_value_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_storage_options([f"{key}=hidden"])

    assert "hidden" not in str(caught.value)
    assert f"{key}=@FILE" in str(caught.value)


@pytest.mark.parametrize("number", ["1_0", "\u0663", "-1", "", "9" * 5000])
@pytest.mark.parametrize("key", ["max_retries", "retry_timeout"])
def test_a_number_is_decimal_digits(key: str, number: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is not a number"):
        ObjectConfig.load("s3://bucket", parse_storage_options([f"{key}={number}"]))


def test_a_repeated_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        parse_storage_options(["region=a", "REGION=b"])


def test_a_reference_to_a_missing_file_names_the_file(tmp_path: Path) -> None:
    options = parse_storage_options([f"token=@{tmp_path / 'none'}"])

    with pytest.raises(InputError, match="none"):
        options.resolve()
