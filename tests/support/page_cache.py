"""The page cache: which pages of a file are in memory, and files that are not."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np


def resident_pages(path: Path) -> list[int]:
    """Return the numbers of the pages of a file that are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapped, np.uint8)
    states = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    assert libc.mincore(view.ctypes.data, size, states) == 0, os.strerror(ctypes.get_errno())
    del view
    mapped.close()
    return [page for page, state in enumerate(states.raw) if state & 1]


def are_still_resident(pages: Collection[int], path: Path) -> bool:
    """Whether pages of a file are in memory, but for the few that the system took back itself."""
    return len(set(pages).intersection(resident_pages(path))) > 0.9 * len(pages)


def evict(path: Path) -> None:
    """Write a file to its disk, and take it out of memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert resident_pages(path) == []
