"""The reason for searching the warm section first (KAFKA-6432): pages touched at an index's end.

An offset index grows entry by entry, and after each of them the offsets of its last entries are
looked up, as followers and consumers do. What a page costs then is a matter of how long ago it was
last touched: long enough, and it is no longer in memory. The first part counts that, from the trace
of the search; the second one takes such pages out of memory and counts what is read from the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numba
import numpy as np
from numpy.typing import NDArray

from benchmarks.picture import Panel, write_picture
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import OFFSET_ENTRY, WARM_BYTES
from kafka_index.core.kernels.search import find_floor

_PICTURE = Path(__file__).parent.parent / "docs" / "warm-cold.svg"
_PAGE_BYTES = 4096
_PAGE_ENTRIES = _PAGE_BYTES // OFFSET_ENTRY.itemsize
_FIRST_PAGES, _LAST_PAGES = 12, 2560
_SHOWN_PAGES = (12, 40, 160, 640, 2560)
_NEAR_ENTRIES = 4
# With index.interval.bytes as it is by default, an entry stands for 4 KiB of log or a little more.
_LOG_BYTES_PER_ENTRY = 4096
_WARM_ENTRIES = {"plain": 0, "warm/cold": WARM_BYTES // OFFSET_ENTRY.itemsize}
_WARM_SECTION_PAGES = WARM_BYTES // _PAGE_BYTES + 1
_ROUNDS = 5
_DRAWN_PAGES = 64
# Pages of growth: what was touched within them counts as in use.
_RECENT_PAGES = 2
_LINE_STEP = 8
_IN_USE, _GONE_COLD = "#4477aa", "#cc3311"


def run(scratch: Path) -> bool:
    """Measure, print, draw, and return whether the warm section is all that is needed."""
    entries = _entries(_LAST_PAGES)
    traces = {name: _trace(entries, warm) for name, warm in _WARM_ENTRIES.items()}
    print(f"Lookups of the last {_NEAR_ENTRIES} entries of an offset index, by its size")
    print(
        "pages: touched by such lookups while the index has that size; oldest: how much log had "
        "been\nappended since one of them was last touched; faults: pages read from the disk when "
        "all but\nthe last 8 KiB had left memory, and how long four lookups took"
    )
    print("               plain search                           warm/cold search")
    print("index    pages  oldest (MiB)  faults     us     pages  oldest (MiB)  faults     us")
    reached = True
    with TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "0.index"
        for pages in _SHOWN_PAGES:
            path.write_bytes(entries[: pages * _PAGE_ENTRIES].tobytes())
            cells = []
            for name, warm_entries in _WARM_ENTRIES.items():
                rounds = [_cold_lookups(path, warm_entries) for _ in range(_ROUNDS)]
                # Whatever else this process reads from the disk meanwhile only adds to it.
                faults, took = min(rounds)
                trace = traces[name]
                touched, oldest = int(trace.touched[pages - 1]), trace.oldest_mib[pages - 1]
                cells.append(f"{touched:6d} {oldest:13.0f} {faults:7d} {took * 1e6:6.0f}")
                if name == "plain":
                    reached &= faults > 0
                else:
                    reached &= faults == 0 and touched <= _WARM_SECTION_PAGES
            print(f"{pages:5d} {'    '.join(cells)}", flush=True)
    warm = traces["warm/cold"]
    reached &= int(warm.touched[_FIRST_PAGES - 1 :].max()) <= _WARM_SECTION_PAGES
    _draw(traces["plain"], warm)
    return reached


class _Trace:
    """Pages that lookups touched while an index grew, by the number of its pages.

    Parameters
    ----------
    sizes, numbers, ages : ndarray of int64, shape (n,)
        Each page that was touched at a size of the index, once, and the largest of the numbers of
        entries that had been appended since it was touched before.
    """

    def __init__(self, sizes: Longs, numbers: Longs, ages: Longs) -> None:
        self.sizes, self.numbers, self.ages = sizes, numbers, ages
        self.touched = np.bincount(sizes, minlength=_LAST_PAGES + 1)[1:]
        oldest = np.zeros(_LAST_PAGES + 1, np.int64)
        np.maximum.at(oldest, sizes, ages)
        self.oldest_mib = oldest[1:] * (_LOG_BYTES_PER_ENTRY / 2**20)


def _entries(pages: int) -> NDArray[np.void]:
    """Return the entries of an index, two offsets apart so that lookups can go between them."""
    entries = np.zeros(pages * _PAGE_ENTRIES, OFFSET_ENTRY)
    entries["relative_offset"] = 2 * np.arange(len(entries))
    entries["position_bytes"] = np.arange(len(entries))
    return entries


def _trace(entries: NDArray[np.void], warm_entries: int) -> _Trace:
    # No page is touched by more than a trace has steps, at any size.
    room = np.empty((3, _LAST_PAGES * 64), np.int64)
    count = _grow(np.uint64(entries.ctypes.data), len(entries), warm_entries, room)
    return _Trace(*room[:, :count])


@numba.njit(nogil=True)
def _grow(address: np.uint64, entries: int, warm_entries: int, rows: Longs) -> int:
    """Grow an index and look up its last entries after each; fill in sizes, pages and ages."""
    last_touched = np.zeros(entries // _PAGE_ENTRIES, np.int64)
    row_of = np.full(entries // _PAGE_ENTRIES, -1, np.int64)
    trace = np.empty(64, np.int64)
    count = 0
    for length in range(1, entries + 1):
        last_touched[(length - 1) // _PAGE_ENTRIES] = length
        if length % _PAGE_ENTRIES == 1:
            row_of[:] = -1
        for near in range(min(_NEAR_ENTRIES, length)):
            target = 2 * (length - 1 - near) + 1
            _, reads = find_floor(address, length, 8, 0, 4, target, warm_entries, trace)
            for read in range(reads):
                page = trace[read] // _PAGE_ENTRIES
                row = row_of[page]
                if row < 0:
                    row = row_of[page] = count
                    rows[0, row] = (length - 1) // _PAGE_ENTRIES + 1
                    rows[1, row] = page
                    rows[2, row] = 0
                    count += 1
                rows[2, row] = max(rows[2, row], length - last_touched[page])
                last_touched[page] = length
    return count


def _cold_lookups(path: Path, warm_entries: int) -> tuple[int, float]:
    """Look up the last entries, the warm section in memory alone; return faults and seconds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        warm_pages = range(max(0, size // _PAGE_BYTES - _WARM_SECTION_PAGES), size // _PAGE_BYTES)
        for page in warm_pages:
            os.pread(descriptor, 1, page * _PAGE_BYTES)
        data = _map(descriptor, size)
        resident = _resident_pages(data)
        if resident != set(warm_pages):
            raise RuntimeError(f"the kernel keeps other pages in memory: {sorted(resident)}")
        entries = size // OFFSET_ENTRY.itemsize
        no_trace = np.empty(0, np.int64)
        targets = [2 * (entries - 1 - near) + 1 for near in range(_NEAR_ENTRIES)]
        address = np.uint64(data.ctypes.data)
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        started = time.perf_counter()
        for target in targets:
            find_floor(address, entries, 8, 0, 4, target, warm_entries, no_trace)
        took = time.perf_counter() - started
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - faults
        read = _resident_pages(data) - resident
        if len(read) > faults:
            raise RuntimeError(f"{faults} faults, but these pages were read: {sorted(read)}")
    finally:
        os.close(descriptor)
    return faults, took


def _map(descriptor: int, size: int) -> NDArray[np.uint8]:
    """Map a file for as long as the array is held."""
    mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    # Without the read-ahead that would bring in the pages around a page.
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, np.uint8)


def _resident_pages(data: NDArray[np.uint8]) -> set[int]:
    """Ask the kernel which pages of a map are in memory."""
    flags = np.zeros(-(-len(data) // _PAGE_BYTES), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address, room = ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(flags.ctypes.data)
    if libc.mincore(address, ctypes.c_size_t(len(data)), room):
        raise OSError(ctypes.get_errno(), "mincore")
    return set(np.flatnonzero(flags & 1).tolist())


def _draw(plain: _Trace, warm: _Trace) -> None:
    """Draw which pages were touched, and how long ago they had been touched before."""
    sizes = (12, 24, 36, 48, _DRAWN_PAGES)
    upper = []
    for name, trace in (("Plain", plain), ("Warm/cold", warm)):
        panel = Panel(
            f"{name} search: pages touched by lookups at the end",
            "pages of the index",
            "page touched",
            sizes,
            (0, 16, 32, 48, _DRAWN_PAGES),
            (450, 330),
        )
        drawn = (trace.sizes >= sizes[0]) & (trace.sizes <= sizes[-1])
        recent = trace.ages <= _RECENT_PAGES * _PAGE_ENTRIES
        for chosen, colour in ((drawn & recent, _IN_USE), (drawn & ~recent, _GONE_COLD)):
            touched = zip(trace.sizes[chosen], trace.numbers[chosen], strict=True)
            panel.add_squares([(float(size), float(page)) for size, page in touched], 5, colour)
        mib = _RECENT_PAGES * _PAGE_ENTRIES * _LOG_BYTES_PER_ENTRY >> 20
        panel.add_key(
            [
                (f"also touched within the last {mib} MiB of log", _IN_USE),
                ("not touched for longer: may have left memory", _GONE_COLD),
            ],
            _DRAWN_PAGES,
        )
        upper.append(panel)
    lower = Panel(
        "The longest that a page had been left alone when a lookup touched it",
        "pages of the index",
        "MiB of log appended",
        (0, 512, 1024, 1536, 2048, _LAST_PAGES),
        (0, 500, 1000, 1500, 2000),
        (900, 330),
    )
    for trace, colour in ((plain, _GONE_COLD), (warm, _IN_USE)):
        # Of neighbouring sizes the worst.
        ages = trace.oldest_mib.reshape(-1, _LINE_STEP).max(axis=1)
        points = [((number + 1.0) * _LINE_STEP, float(age)) for number, age in enumerate(ages)]
        lower.add_line([point for point in points if point[0] >= _FIRST_PAGES], colour)
    lower.add_key([("plain search", _GONE_COLD), ("warm/cold search", _IN_USE)], 2000)
    write_picture(_PICTURE, [upper, [lower]])
