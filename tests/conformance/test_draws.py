"""The draw of random segments reaches everything that recovery distinguishes, and often enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .features import count_features

if TYPE_CHECKING:
    from collections import Counter

RANDOM_CASES = 750
#: What at least 1 of 20, and 1 of 500, random segments have.
OFTEN = (
    *(f"codec: magic 2, {codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
    *(f"codec: magic {m}, {c}" for m in (0, 1) for c in ("none", "gzip", "snappy", "lz4")),
    *(f"flag: {flag}" for flag in ("transactional", "control", "log-append time")),
    "flag: delete horizon",
    "no records",
    "three codecs or more",
    "whole",
    "cut: bad_crc",
    "refused: offset_backward",
)
SOMETIMES = (
    *(f"cut: {stop}" for stop in ("bad_length", "bad_size", "torn_batch", "torn_header")),
    *(f"cut: {stop}" for stop in ("preallocated_tail", "invalid_marker")),
    "refused: abort_offset_backward",
    "refused: epoch_offset_negative",
    "refused: index_full",
    "refused: not_transactional",
    "refused: offset_overflow",
    "refused: transaction_unknown",
    "refused: unreadable_marker",
    *(f"control type: {number} of a producer" for number in (0, 1)),
    *(f"control type: {number} of no producer" for number in (2, 3, 4, 5, 6)),
    "compressed control batch",
    "magic below 0",
    "magic above 2",
    "offset entries: 0",
    "offset entries: 16 or more",
    "time entries: 16 or more",
)


@pytest.fixture(scope="module")
def counted() -> Counter[str]:
    return count_features(1, RANDOM_CASES)


@pytest.mark.parametrize("feature", OFTEN)
def test_random_logs_often_contain_the_feature(counted: Counter[str], feature: str) -> None:
    assert counted[feature] * 20 >= RANDOM_CASES


@pytest.mark.parametrize("feature", SOMETIMES)
def test_random_logs_sometimes_contain_the_feature(counted: Counter[str], feature: str) -> None:
    assert counted[feature] * 500 >= RANDOM_CASES
