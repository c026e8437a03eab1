"""Counts of keys in bounded memory: exact for few keys, within their error for many."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.commands.stats import sketches
from kafka_index.commands.stats.sketches import SAMPLE_KEYS, HotKeys, KeySample, hash_bytes


def keys_of(numbers: Sequence[int]) -> list[bytes]:
    return [b"key-%d" % number for number in numbers]


def sample_of(keys: Sequence[bytes], first_offset: int = 0) -> KeySample:
    """A sample of keys at successive offsets."""
    sample = KeySample()
    offsets = np.arange(len(keys)) + first_offset
    rows = np.stack([offsets, offsets * 2, offsets * 3], axis=1)
    for start in range(0, len(keys), 5000):
        part = slice(start, start + 5000)
        sample.add(hash_bytes(pa.array(keys[part], pa.binary())), rows[part])
    return sample


def copy_of(counts: Any) -> Any:
    """The counts after they were pickled."""
    return pickle.loads(pickle.dumps(counts))  # noqa: S301


def test_key_hash_does_not_depend_on_adjacent_keys() -> None:
    keys = [b"", b"a", b"ab" * 40, b"\0", b"\0\0", b"12345678", b"123456789"]
    together = hash_bytes(pa.array(keys, pa.binary()))
    alone = [hash_bytes(pa.array([key], pa.binary()))[0] for key in keys]
    sliced = hash_bytes(pa.array([b"other", *keys], pa.binary())[1:])
    assert together.tolist() == alone == sliced.tolist()
    assert len(set(alone)) == len(keys)


def test_key_sample_is_exact_if_all_keys_fit() -> None:
    keys = keys_of(range(SAMPLE_KEYS)) * 2
    sample = sample_of(keys)
    assert (sample.distinct, sample.relative_error) == (SAMPLE_KEYS, 0)
    # The sample has the last record of each key.
    assert sorted(sample.rows[:, 0]) == list(range(SAMPLE_KEYS, 2 * SAMPLE_KEYS))


@pytest.mark.parametrize("count", [30_000, 300_000])
def test_estimate_is_within_four_standard_errors(count: int) -> None:
    sample = sample_of(keys_of(range(count)))
    assert abs(sample.distinct - count) < 4 * sample.relative_error * count
    assert len(sample.hashes) == SAMPLE_KEYS


def test_merged_samples_equal_the_sample_of_all_keys() -> None:
    draw = random.Random(7)
    keys = keys_of([draw.randrange(40_000) for _ in range(90_000)])
    merged = sample_of(keys[60_000:], 60_000)
    for start in (30_000, 0):
        merged.merge(copy_of(sample_of(keys[start : start + 30_000], start)))
    whole = sample_of(keys)
    assert merged.limit <= whole.limit < 2**64
    kept = whole.hashes < np.uint64(merged.limit)
    assert merged.hashes.tolist() == whole.hashes[kept].tolist()
    assert merged.rows.tolist() == whole.rows[kept].tolist()


def test_hot_key_counts_are_within_their_error_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "_COUNTED_KEYS", 50)
    draw = random.Random(5)
    numbers = [int(draw.paretovariate(0.7)) % 5000 for _ in range(40_000)]
    exact = Counter(keys_of(numbers))
    merged = HotKeys(5)
    for part in range(4):
        hot = HotKeys(5)
        for start in range(part * 10_000, (part + 1) * 10_000, 1000):
            counts = Counter(keys_of(numbers[start : start + 1000]))
            keys = pa.array(list(counts), pa.binary())
            hot.add(hash_bytes(keys), np.array(list(counts.values())), keys)
        merged.merge(copy_of(hot))
    top = list(merged.top())
    assert [key for key, _, _ in top[:3]] == [key for key, _ in exact.most_common(3)]
    for key, count, error in top:
        assert count - error <= exact[key] <= count
        assert 0 < error <= len(numbers) / 50
