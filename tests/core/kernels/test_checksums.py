"""Checksums in compiled loops, and each method of CRC-32C that this CPU has, against libraries."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.kernels import checksums
from kafka_index.core.kernels.checksums import (
    METHODS,
    crc32,
    crc32c,
    crc32c_extend,
    supported_methods,
)
from kafka_index.core.kernels.compile_cache import compiled

SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 4096, 100_003]


@compiled
def _crc32c(address: int, size: int) -> np.int64:
    return np.int64(crc32c_extend(np.uint32(0), np.uint64(address), np.uint64(size)))


def of(kernel: Callable[..., Any], data: bytes, start: int = 0) -> int:
    memory = np.frombuffer(bytes(start) + data, np.uint8)
    return int(kernel(np.uint64(memory.ctypes.data + start), np.uint64(len(data))))


@given(st.binary(max_size=200), st.integers(0, 7))
def test_crc32_equals_zlib_at_any_alignment(data: bytes, start: int) -> None:
    assert of(crc32, data, start) == zlib.crc32(data)


@given(st.binary(max_size=200), st.integers(0, 7))
def test_crc32c_equals_google_crc32c_at_any_alignment(data: bytes, start: int) -> None:
    assert of(_crc32c, data, start) == google_crc32c.value(data)


@pytest.mark.parametrize("size", SIZES)
def test_checksums_are_correct_at_loop_boundary_sizes(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert of(crc32, data) == zlib.crc32(data)
    assert of(_crc32c, data) == google_crc32c.value(data)


def test_checksums_of_high_bytes_are_not_negative() -> None:
    assert of(crc32, b"\xff" * 33) == zlib.crc32(b"\xff" * 33)


@given(st.binary(max_size=300), st.integers(0, 9))
def test_crc32c_accepts_bytes_and_memory_views(data: bytes, start: int) -> None:
    assert crc32c(data) == google_crc32c.value(data)
    assert crc32c(memoryview(data)[start:]) == google_crc32c.value(data[start:])


Checksum = Callable[[int, int, int], int]

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64)
_FUNCTIONS: dict[str, Checksum] = {
    method: _SIGNATURE(checksums.method_address(method)) for method in supported_methods()
}
DATA = np.random.default_rng(0).integers(0, 256, 40_000, np.uint8)


@pytest.fixture(params=METHODS)
def checksum(request: pytest.FixtureRequest) -> Checksum:
    if request.param not in _FUNCTIONS:
        pytest.skip(f"not run: this CPU lacks one of {', '.join(METHODS[request.param])}")
    return _FUNCTIONS[request.param]


def test_checksums_are_correct_for_every_size_up_to_the_stream_length(checksum: Checksum) -> None:
    data = DATA.tobytes()
    for size in range(3300):
        assert checksum(0, DATA.ctypes.data, size) == google_crc32c.value(data[:size]), size


@pytest.mark.parametrize("size", [4096, 8191, 16_363, 39_000])
def test_checksums_of_large_batches_are_correct(checksum: Checksum, size: int) -> None:
    assert checksum(0, DATA.ctypes.data, size) == google_crc32c.value(DATA[:size].tobytes())


@pytest.mark.parametrize("start", range(1, 9))
def test_checksum_does_not_depend_on_alignment(checksum: Checksum, start: int) -> None:
    for size in (5, 8, 61, 179, 1003):
        expected = google_crc32c.value(DATA[start : start + size].tobytes())
        assert checksum(0, DATA.ctypes.data + start, size) == expected


@pytest.mark.parametrize("method", _FUNCTIONS)
@given(st.integers(0, 5000), st.integers(0, 5000))
def test_checksum_can_be_continued_from_any_position(method: str, first: int, second: int) -> None:
    function, address = _FUNCTIONS[method], DATA.ctypes.data
    continued = function(function(0, address, first), address + first, second)
    assert continued == google_crc32c.value(DATA[: first + second].tobytes())


def test_checksum_reads_no_byte_outside_the_data(checksum: Checksum) -> None:
    # A read of a guard page would end the process.
    with mmap.mmap(-1, 3 * PAGE) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (address, address + 2 * PAGE):
            assert libc.mprotect(ctypes.c_void_p(guard), PAGE, _PROT_NONE) == 0, os.strerror(
                ctypes.get_errno()
            )
        for size in (*range(1, 300), 1003, PAGE):
            expected = google_crc32c.value(bytes(size))
            assert checksum(0, address + PAGE, size) == expected
            assert checksum(0, address + 2 * PAGE - size, size) == expected


# ---------------------------------------------------------------------------- which one is used

_REPORT = (
    "from kafka_index.core.kernels import checksums as c;print(c.CRC32C_METHOD, c.crc32c(b'kafka'))"
)


def report(method: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", _REPORT],
        env={**os.environ, checksums.METHOD_VARIABLE: method},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split()


@pytest.mark.parametrize("method", checksums.crc32c_methods())
def test_environment_variable_selects_the_checksum_method(method: str) -> None:
    assert report(method) == [method, str(google_crc32c.value(b"kafka"))]


def test_fastest_checksum_method_is_the_default() -> None:
    assert report("")[0] == checksums.crc32c_methods()[0]


def test_method_that_this_cpu_lacks_is_replaced_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(checksums.METHOD_VARIABLE, "abacus")
    with caplog.at_level(logging.WARNING):
        assert checksums.chosen_method() == checksums.crc32c_methods()[0]
    assert "abacus" in caplog.text
