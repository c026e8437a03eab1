"""Checksums in compiled loops against the libraries'."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.kernels.checksums import crc32, crc32c, crc32c_extend
from kafka_index.kernels.compile_cache import compiled

SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 4096, 100_003]


@compiled
def _crc32c(address: int, size: int) -> np.int64:
    return np.int64(crc32c_extend(np.uint32(0), np.uint64(address), np.uint64(size)))


def of(kernel: Callable[..., Any], data: bytes, start: int = 0) -> int:
    memory = np.frombuffer(bytes(start) + data, np.uint8)
    return int(kernel(np.uint64(memory.ctypes.data + start), np.uint64(len(data))))


@given(st.binary(max_size=200), st.integers(0, 7))
def test_crc32_is_zlibs_at_any_alignment(data: bytes, start: int) -> None:
    assert of(crc32, data, start) == zlib.crc32(data)


@given(st.binary(max_size=200), st.integers(0, 7))
def test_crc32c_is_googles_at_any_alignment(data: bytes, start: int) -> None:
    assert of(_crc32c, data, start) == google_crc32c.value(data)


@pytest.mark.parametrize("size", SIZES)
def test_both_hold_at_the_sizes_where_loops_change(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert of(crc32, data) == zlib.crc32(data)
    assert of(_crc32c, data) == google_crc32c.value(data)


def test_checksums_of_high_bytes_are_not_negative() -> None:
    assert of(crc32, b"\xff" * 33) == zlib.crc32(b"\xff" * 33)


@given(st.binary(max_size=300), st.integers(0, 9))
def test_crc32c_takes_bytes_and_views_of_them(data: bytes, start: int) -> None:
    assert crc32c(data) == google_crc32c.value(data)
    assert crc32c(memoryview(data)[start:]) == google_crc32c.value(data[start:])
