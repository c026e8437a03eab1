"""Checkpoint texts, and layouts of what is kept of producers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import InputError
from kafka_index.core.format.checkpoints import (
    EpochEntry,
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
)
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.records import (
    ABORTED_TXN,
    PRODUCER_STATE_ENTRY,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
)

PARTITIONS = st.builds(
    TopicPartition,
    st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
    st.integers(0, INT32_MAX),
)


@given(st.dictionaries(PARTITIONS, st.integers(0, INT64_MAX)))
def test_offset_checkpoint_is_read_as_written(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offset_checkpoint(format_offset_checkpoint(offsets)) == offsets


@given(st.lists(st.builds(EpochEntry, st.integers(0, INT32_MAX), st.integers(0, INT64_MAX))))
def test_epoch_checkpoint_is_read_as_written(epochs: list[EpochEntry]) -> None:
    assert parse_leader_epoch_checkpoint(format_leader_epoch_checkpoint(epochs)) == epochs


def test_checkpoint_texts_equal_those_of_a_broker() -> None:
    offsets = {TopicPartition("or-ders", 1): 368801, TopicPartition("x", 0): 0}
    assert format_offset_checkpoint(offsets) == "0\n2\nor-ders 1 368801\nx 0 0\n"
    assert format_leader_epoch_checkpoint([EpochEntry(4, 77)]) == "0\n1\n4 77\n"


@pytest.mark.parametrize("text", ["", "0\n", "0\n0\n", "0\r\n0"])
def test_checkpoint_without_entries_is_empty(text: str) -> None:
    assert parse_offset_checkpoint(text) == {}


def test_checkpoint_fields_can_be_separated_by_several_blanks() -> None:
    assert parse_leader_epoch_checkpoint("0\n1\n4 \t 77 \r\n") == [EpochEntry(4, 77)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n", "line 1 .* not a known version"),
        ("x\n", "line 1 .* not a known version"),
        ("0\nmany\n", "line 2"),
        ("0\n-1\n", "line 2"),
        ("0\n1\norders 0\n", "line 3 .* malformed .*expected 'topic partition offset'"),
        ("0\n1\norders zero 1\n", "line 3"),
        ("0\n1\norders 0 9223372036854775808\n", "line 3"),
        ("0\n2\norders 0 1\n", r"number of entries .*\(expected 2, found 1\)"),
        ("0\n1\norders 0 1\nx 0 1\n", r"\(expected 1, found 2\)"),
        ("0\n1\norders 0 1\n\n", "line 4"),
        (f"0\n1\norders 0 {'9' * 5000}\n", r"line 3 .*found 'orders 0 9+'\.\.\. \(5009 char"),
        (f"0\n{'9' * 5000}\n", r"line 2 .*expected a count.*\(5000 char"),
        (f"{'9' * 5000}\n", r"line 1 .*expected 0.*\(5000 char"),
    ],
)
def test_malformed_checkpoint_is_rejected_with_its_position(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_offset_checkpoint(text, path="/data/recovery-point-offset-checkpoint")
    assert caught.value.path == "/data/recovery-point-offset-checkpoint"


@pytest.mark.parametrize("epoch", ["04", "+4", "0" * 5000 + "4", "\u0664", "+\u0660\uff14"])
def test_leading_zeros_plus_signs_and_other_digits_are_read_as_by_java(epoch: str) -> None:
    assert parse_leader_epoch_checkpoint(f"0\n1\n{epoch} 77\n") == [EpochEntry(4, 77)]


@pytest.mark.parametrize(
    "line",
    [
        *("4_0 77", "0x4 77", "\u00b2 77", "\U0001d7d2 77", "4 77 1"),
        *(f"{'9' * 5000} 1", f"1 {'9' * 5000}", f"1 -{'9' * 20}"),
    ],
)
def test_checkpoint_line_that_java_rejects_is_rejected(line: str) -> None:
    with pytest.raises(InputError, match="line 3"):
        parse_leader_epoch_checkpoint(f"0\n1\n{line}\n")


@pytest.mark.parametrize(
    ("layout", "form", "values"),
    [
        (ABORTED_TXN, ">hqqqq", (0, -2, 3, 2**40, 5)),
        (SNAPSHOT_HEADER, ">hIi", (1, 2**32 - 2, 7)),
        (SNAPSHOT_ENTRY, ">qhiqiqiq", (2**33, 2, 3, 2**34, 5, 2**35, 7, -1)),
    ],
)
def test_format_fields_are_contiguous_and_big_endian(
    layout: np.dtype[np.void], form: str, values: tuple[int, ...]
) -> None:
    assert layout.itemsize == struct.calcsize(form)
    assert np.array([values], layout).tobytes() == struct.pack(form, *values)


def test_in_memory_entries_have_the_fields_of_file_entries() -> None:
    assert PRODUCER_STATE_ENTRY.names == SNAPSHOT_ENTRY.names
    assert all(PRODUCER_STATE_ENTRY[name].isnative for name in PRODUCER_STATE_ENTRY.names or ())
