"""Decompression within one bound for all threads of a process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from tests.support.segments import LZ4, PACKERS, SNAPPY, ZSTD, xerial
from tests.support.timeouts import TIMEOUT_SECONDS

CODECS = pytest.mark.parametrize("codec", PACKERS, ids=("gzip", "snappy", "lz4", "zstd"))
MIB = 1024 * 1024


def zeros(size: int) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(bytes(size), asbytes=True)
    return packed


@CODECS
def test_memory_budget_is_released_when_records_are_closed(codec: int) -> None:
    budget = DecompressionBudget(100)
    with budget.decompress(codec, PACKERS[codec](b"records")) as records:
        assert records.data.tobytes() == b"records"
        assert budget.free_bytes == 100 - len(b"records")
    records.close()
    assert budget.free_bytes == 100


def test_memory_budget_is_released_after_a_fault() -> None:
    budget = DecompressionBudget(100)
    with pytest.raises(CorruptLogError):
        budget.decompress(ZSTD, b"not compressed at all")
    with pytest.raises(TooLargeError):
        budget.decompress(ZSTD, zeros(101))
    assert budget.free_bytes == 100


def test_memory_of_a_generator_that_is_collected_during_a_wait_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Garbage collection closes the generator in the thread that has the lock."""
    budget = DecompressionBudget(100)

    def reserve() -> Iterator[None]:
        with budget.reserve(10):
            yield

    cycle: list[object] = [reserve()]
    next(cycle[0])  # type: ignore[call-overload]
    cycle.append(cycle)
    del cycle
    monkeypatch.setattr(budget._changed, "wait", lambda _timeout=None: gc.collect())
    reservation = budget.reserve(100)
    thread = threading.Thread(target=reservation.__enter__, daemon=True)
    thread.start()
    thread.join(TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert budget.free_bytes == 0


def test_malformed_lz4_block_is_damage_with_any_budget() -> None:
    # A frame with blocks of up to 4 MiB, and a frame whose match begins before its start.
    frame = bytes.fromhex("04224d18607073") + b"\x05\0\0\0" + b"\x10a\xff\xff\0" + bytes(4)
    for max_bytes in (MIB, 4 * MIB, 64 * MIB):
        with pytest.raises(CorruptLogError):
            DecompressionBudget(max_bytes).decompress(LZ4, frame)


@pytest.mark.parametrize("size", [4 * MIB, 4 * MIB + 1, 32 * MIB + 1, 40 * MIB])
def test_batch_can_use_the_complete_budget(size: int) -> None:
    budget = DecompressionBudget(40 * MIB)
    with budget.decompress(ZSTD, zeros(size)) as records:
        assert len(records.data) == size
        assert budget.free_bytes == 40 * MIB - size


def test_thread_waits_for_free_memory_budget() -> None:
    budget = DecompressionBudget(100)
    result = threading.Event()

    def second() -> None:
        budget.decompress(ZSTD, zeros(60)).close()
        result.set()

    first = budget.decompress(ZSTD, zeros(60))
    thread = threading.Thread(target=second)
    thread.start()
    assert not result.wait(0.2)
    first.close()
    assert result.wait(60)
    thread.join()


def test_threads_that_need_most_of_the_budget_do_not_deadlock() -> None:
    budget = DecompressionBudget(10 * MIB)
    packed = [zeros(size * MIB) for size in (9, 1, 10, 5, 8, 3, 10, 7)]

    def size_of(data: bytes) -> int:
        with budget.decompress(ZSTD, data) as records:
            return len(records.data)

    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(size_of, packed, timeout=TIMEOUT_SECONDS))
    assert sizes == [size * MIB for size in (9, 1, 10, 5, 8, 3, 10, 7)]
    assert budget.free_bytes == budget.max_bytes


def test_equal_memory_limits_share_one_budget_in_a_process() -> None:
    assert shared_budget(12345) is shared_budget(12345)


_BOMBS = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from kafka_index.core.errors import TooLargeError
from kafka_index.core.records.decompression import shared_budget

def explode(path):
    try:
        with open(path, "rb") as file:
            shared_budget(32 << 20).decompress(int(path[-1]), file.read()).close()
    except TooLargeError:
        return "too_large"

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(4) as threads:
    found = list(threads.map(explode, sys.argv[1:] * 4))
print(*set(found), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@CODECS
def test_decompression_bombs_on_four_threads_stay_within_the_limit(
    codec: int, tmp_path: Path
) -> None:
    bomb = tmp_path / f"bomb.{codec}"
    # Snappy in the blocks of Java clients: in small ones, zeros are larger than they were.
    pack = partial(xerial, chunk_bytes=32 * 1024) if codec == SNAPPY else PACKERS[codec]
    bomb.write_bytes(pack(bytes(96 * MIB)))
    result = subprocess.run(
        [sys.executable, "-c", _BOMBS, str(bomb)], capture_output=True, check=True, text=True
    )
    found, kib = result.stdout.split()
    assert found == "too_large"
    # The bomb itself, in each thread, and what the decoders hold.
    allowance = 4 * bomb.stat().st_size + 32 * MIB
    assert int(kib) * 1024 < 32 * MIB + allowance
