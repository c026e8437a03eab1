"""The speed of the machine itself with a log, to compare our figures with.

Three limits of reading: the CRC-32C of all bytes as one big buffer in memory, by google-crc32c; the
file read in pieces of 256 KiB from the page cache; and a bare walk, which reads the length of each
batch and hops to the next. One limit of lookups: sort the targets with numpy, walk once with them,
and put the positions found back in the order of the targets. None of them checks anything, and none
answers more than a position.
"""

from __future__ import annotations

import mmap
from contextlib import closing
from pathlib import Path

import google_crc32c
import numba
import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.records import LOG_OVERHEAD_BYTES
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.reading import WindowWalk
from kafka_index.core.kernels.checksums import crc32c_extend
from kafka_index.core.kernels.memory import read_int32, read_int64

_READ_BYTES = 256 << 10
_WINDOW_BYTES = 2 << 20
_LENGTH_POSITION = 8


def checksum(data: bytes) -> int:
    """Return the CRC-32C of one big buffer."""
    return int(google_crc32c.value(data))


def checksum_pieces(data: bytes, piece_bytes: int) -> int:
    """Checksum a buffer in pieces as large as batches, by the function that a scan calls."""
    array = np.frombuffer(data, np.uint8)
    return int(_checksum_pieces(np.uint64(array.ctypes.data), len(array), piece_bytes))


def checksum_windows(log: Path, piece_bytes: int, *, copies: bool) -> None:
    """Read a log in windows, checksum it in pieces, and perhaps copy its bytes to one place."""
    with closing(MappedFile(log)) as file:
        walk = WindowWalk(file, _WINDOW_BYTES)
        out = np.zeros(_WINDOW_BYTES, np.uint8)
        for position in range(0, file.size_bytes, _WINDOW_BYTES):
            window = walk.window(position)
            _checksum_pieces(np.uint64(window.ctypes.data), len(window), piece_bytes)
            if copies:
                out[: len(window)] = window


def read(log: Path) -> None:
    """Read a file in pieces, into one buffer."""
    buffer = bytearray(_READ_BYTES)
    with log.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def walk(log: Path) -> int:
    """Map a log and hop from length to length; return the number of batches."""
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8)
        count = int(_walk(np.uint64(data.ctypes.data), len(data)))
        del data
    return count


def look_up(
    log: NDArray[np.uint8], offsets: NDArray[np.int64], columns: int = 1
) -> NDArray[np.int64]:
    """Return the position of the batch of each offset, by sort, bare walk and putting back.

    Parameters
    ----------
    log : ndarray of uint8
        The log, mapped.
    offsets : ndarray of int64, shape (n,)
        Offsets in the log, in any order.
    columns : int
        How many columns of answers are put back; all of them hold the position.

    Returns
    -------
    ndarray of int64, shape (columns, n)
    """
    targets, rows = _sort(offsets)
    answers = np.empty((columns, len(targets)), np.int64)
    positions = np.empty(len(targets), np.int64)
    _walk_to(np.uint64(log.ctypes.data), len(log), targets, positions)
    _put_back(positions, rows, answers)
    return answers


def _sort(offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort offsets with their rows, as integers of both, by numpy."""
    row_bits = len(offsets).bit_length()
    packed = offsets << row_bits | np.arange(len(offsets))
    packed.sort()
    return packed >> row_bits, packed & ((1 << row_bits) - 1)


@numba.njit(nogil=True)
def _checksum_pieces(address: np.uint64, size: int, piece_bytes: int) -> np.uint32:
    result = np.uint32(0)
    for start in range(0, size - piece_bytes + 1, piece_bytes):
        piece = address + np.uint64(start)
        result ^= crc32c_extend(np.uint32(0), piece, np.uint64(piece_bytes))
    return result


@numba.njit(nogil=True)
def _walk(log: np.uint64, log_bytes: int) -> int:
    position, count = 0, 0
    while position < log_bytes:
        length = read_int32(log + np.uint64(position + _LENGTH_POSITION))
        position += LOG_OVERHEAD_BYTES + length
        count += 1
    return count


@numba.njit(nogil=True)
def _walk_to(
    log: np.uint64,
    log_bytes: int,
    targets: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> None:
    position = 0
    after = LOG_OVERHEAD_BYTES + read_int32(log + np.uint64(_LENGTH_POSITION))
    for query in range(len(targets)):
        while after < log_bytes and read_int64(log + np.uint64(after)) <= targets[query]:
            position = after
            after += LOG_OVERHEAD_BYTES + read_int32(log + np.uint64(after + _LENGTH_POSITION))
        positions[query] = position


@numba.njit(nogil=True)
def _put_back(
    values: NDArray[np.int64], rows: NDArray[np.int64], answers: NDArray[np.int64]
) -> None:
    for column in answers:
        for query in range(len(rows)):
            column[rows[query]] = values[query]
