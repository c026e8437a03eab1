"""Each method of CRC-32C that this CPU has, called by its own address, against google-crc32c."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import subprocess
import sys
from collections.abc import Callable

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.kernels import checksums
from kafka_index.kernels.fast_crc32c import METHODS, supported_methods

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


def test_every_size_up_to_the_longest_streams_has_its_checksum(checksum: Checksum) -> None:
    data = DATA.tobytes()
    for size in range(3300):
        assert checksum(0, DATA.ctypes.data, size) == google_crc32c.value(data[:size]), size


@pytest.mark.parametrize("size", [4096, 8191, 16_363, 39_000])
def test_large_batches_have_their_checksum(checksum: Checksum, size: int) -> None:
    assert checksum(0, DATA.ctypes.data, size) == google_crc32c.value(DATA[:size].tobytes())


@pytest.mark.parametrize("start", range(1, 9))
def test_no_alignment_changes_a_checksum(checksum: Checksum, start: int) -> None:
    for size in (5, 8, 61, 179, 1003):
        expected = google_crc32c.value(DATA[start : start + size].tobytes())
        assert checksum(0, DATA.ctypes.data + start, size) == expected


@pytest.mark.parametrize("method", _FUNCTIONS)
@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_checksum_is_continued_from_any_place(method: str, first: int, second: int) -> None:
    function, address = _FUNCTIONS[method], DATA.ctypes.data
    continued = function(function(0, address, first), address + first, second)
    assert continued == google_crc32c.value(DATA[: first + second].tobytes())


def test_no_byte_outside_the_data_is_read(checksum: Checksum) -> None:
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
    "from kafka_index.kernels import checksums as c; print(c.CRC32C_METHOD, c.crc32c(b'kafka'))"
)


def report(method: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _REPORT],
        env={**os.environ, checksums.METHOD_VARIABLE: method},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("method", checksums.crc32c_methods())
def test_the_variable_chooses_the_method(method: str) -> None:
    assert report(method) == [method, str(google_crc32c.value(b"kafka"))]


def test_without_the_variable_the_fastest_method_is_used() -> None:
    assert report("")[0] == checksums.crc32c_methods()[0]


def test_a_method_that_this_cpu_lacks_is_replaced_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(checksums.METHOD_VARIABLE, "abacus")
    with caplog.at_level(logging.WARNING):
        assert checksums.chosen_method() == checksums.crc32c_methods()[0]
    assert "abacus" in caplog.text
