"""The checksum for callers outside the kernels."""

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.kernels.checksum import crc32c


@given(st.binary(max_size=300), st.integers(0, 9))
def test_crc32c_is_googles_of_bytes_and_of_parts_of_them(data: bytes, start: int) -> None:
    assert crc32c(data) == google_crc32c.value(data)
    assert crc32c(memoryview(data)[start:]) == google_crc32c.value(data[start:])
