"""Numbers in the options of data sources: what Spark's Kafka source reads, and nothing else."""

from __future__ import annotations

import json

import pytest

from kafka_index.errors import InputError
from kafka_index.spark.option_values import parse_by_partition, parse_number

NAME = "startingoffsets"
TOO_LONG = "9" * 5000


@pytest.mark.parametrize("text", ["1_000", "1.0", "0x1", "", TOO_LONG, "9223372036854775808"])
def test_a_text_that_java_does_not_read_is_not_a_number(text: str) -> None:
    with pytest.raises(InputError, match="malformed"):
        parse_number({NAME: text}, NAME, 0)


@pytest.mark.parametrize("text", ["1000", " 1000 ", "+1000", "\u0661\u0660\u0660\u0660"])
def test_a_text_is_read_as_java_reads_it(text: str) -> None:
    assert parse_number({NAME: text}, NAME, 0) == 1000


@pytest.mark.parametrize(
    "text",
    [
        '{"t": {"1_0": 1}}',
        '{"t": {"2147483648": 1}}',
        '{"t": {"0": "1_000"}}',
        '{"t": {"0": true}}',
        '{"t": {"0": null}}',
        '{"t": {"0": Infinity}}',
        '{"t": {"0": 9223372036854775808}}',
        f'{{"t": {{"{TOO_LONG}": 1}}}}',
    ],
)
def test_what_is_not_a_number_by_partition_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="malformed"):
        parse_by_partition({NAME: text}, NAME)


def test_a_partition_is_read_as_java_reads_it_and_a_fraction_is_cut_as_in_spark() -> None:
    text = json.dumps({"t": {"\u0661": 5, "02": 7.9, "3": "9"}})

    assert parse_by_partition({NAME: text}, NAME) == {"t": {1: 5, 2: 7, 3: 9}}
