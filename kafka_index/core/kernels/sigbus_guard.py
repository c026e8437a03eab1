"""Handle SIGBUS, which is raised if a mapped file is truncated or its disk fails.

By default, SIGBUS kills the process, for example a Spark worker with all its segments. This handler
maps a page of zeros in place of the lost page of a guarded memory mapping, and records the page
fault. The reader continues over zeros. Afterwards, the owner of the guard checks it and discards
the result if there was a page fault. Page faults elsewhere go to the previous handler. Remote logs
that are only partly fetched rely on this handler, too: the missing range is fetched and the read
repeated.

The handler is machine code without any Python, as signal handlers must be. It exists only on 64-bit
Linux with glibc's layout of ``sigaction``; elsewhere guards do nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import sys
import threading
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.kernels.compile_cache import compile_function

_NAME = "kafka_index_handle_fault"
_PAGE = mmap.PAGESIZE
_PROT_READ = 1
_MAP_PRIVATE_FIXED_ANONYMOUS = 0x02 | 0x10 | 0x20
_SA_SIGINFO_ONSTACK = 0x4 | 0x08000000
_ADDRESS_IN_SIGINFO = 16
_SIGACTION_BYTES = 152
_FLAGS_IN_SIGACTION = 136
_SUPPORTED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

#: Maximum number of guarded memory mappings; further mappings are not guarded.
_SLOTS = 4096
_START, _END, _FAULTS = range(3)
# Memory shared with the handler: start, end and fault count of each guarded memory mapping, and its
# latest fault addresses. The table is never freed.
_table = np.zeros((_SLOTS, 3), np.uint64)
_NOTED = 64
_noted = np.zeros((_SLOTS, _NOTED), np.uint64)
_previous_action = ctypes.create_string_buffer(_SIGACTION_BYTES)
_previous_address = ctypes.addressof(_previous_action)
_free_slots = list(range(_SLOTS - 1, -1, -1))
# How often each slot was used, to detect that a guard has lost its slot.
_times_taken = [0] * _SLOTS
_lock = threading.Lock()
_handler_address: int | None = None


class SigbusGuard:
    """A guard of one memory mapping, until `release`.

    `address`: start of the mapping, page-aligned. `size_bytes`: its size.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self._taken_slot: int | None = None
        self._time_taken = 0
        with _lock:
            if not _install():
                return
            _free_stale_slots(address, address + size_bytes)
            if not _free_slots:
                return
            slot = _free_slots.pop()
            _times_taken[slot] += 1
            self._taken_slot, self._time_taken = slot, _times_taken[slot]
            # The end is written last, so that a partly written range contains no address.
            _table[slot, _FAULTS] = 0
            _table[slot, _START] = address
            _table[slot, _END] = address + size_bytes

    @property
    def _slot(self) -> int | None:
        slot = self._taken_slot
        return slot if slot is not None and _times_taken[slot] == self._time_taken else None

    @property
    def faulted(self) -> bool:
        """Whether a page was lost, so that the data read is not reliable."""
        slot = self._slot
        return slot is not None and bool(_table[slot, _FAULTS])

    @property
    def is_active(self) -> bool:
        return self._slot is not None

    def drain_faults(self) -> tuple[NDArray[np.uint64], bool]:
        """Return the fault addresses since the last call, and whether the list is complete."""
        slot = self._slot
        if slot is None:
            return np.empty(0, np.uint64), True
        count = int(_table[slot, _FAULTS])
        found = _noted[slot, : min(count, _NOTED)].copy()
        _table[slot, _FAULTS] = 0
        return found, count <= _NOTED

    def rearm(self) -> None:
        """Install the handler again if another one has replaced it."""
        with _lock:
            _install()

    def release(self) -> None:
        """Remove the guard; call it before the file is unmapped."""
        with _lock:
            slot = self._slot
            if slot is not None:
                _free_slot(slot)
            self._taken_slot = None


def _free_slot(slot: int) -> None:
    _table[slot, _END] = 0
    _table[slot, _START] = 0
    _times_taken[slot] += 1
    _free_slots.append(slot)


def _free_stale_slots(start: int, end: int) -> None:
    """Free the slots of memory mappings that were unmapped without a release.

    `start` and `end` are the address range of a new mapping, which reuses their addresses. The
    handler uses the first range that contains an address. With a stale range, page faults of the
    new mapping would be recorded in the old slot, and the owner of the mapping would use the zeros
    as data.
    """
    overlaps = (_table[:, _START] < end) & (_table[:, _END] > start)
    for slot in np.flatnonzero(overlaps).tolist():
        _free_slot(slot)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _install() -> bool:
    """Install the handler, or install it again if another one has replaced it."""
    global _handler_address  # noqa: PLW0603, because a process has one handler
    if not _SUPPORTED:
        return False
    if _handler_address is None:
        _handler_address = compile_function(_NAME, _handler_source())
    libc = _libc()
    found = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if libc.sigaction(signal.SIGBUS, None, found) != 0:
        return False
    if ctypes.c_void_p.from_buffer(found, 0).value == _handler_address:
        return True
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    ctypes.c_void_p.from_buffer(action, 0).value = _handler_address
    ctypes.c_int.from_buffer(action, _FLAGS_IN_SIGACTION).value = _SA_SIGINFO_ONSTACK
    ctypes.memmove(_previous_action, found, _SIGACTION_BYTES)
    return bool(libc.sigaction(signal.SIGBUS, action, None) == 0)


def _handler_source() -> str:
    # LLVM assembly, because numba takes half a second for the same and cannot cache it.
    return f"""
declare i64 @mmap(i64, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, i64, i64)

define void @{_NAME}(i32 %number, ptr %information, ptr %context) {{
entry:
  %place = getelementptr i8, ptr %information, i64 {_ADDRESS_IN_SIGINFO}
  %address = load i64, ptr %place
  br label %look
look:
  %slot = phi i64 [ 0, %entry ], [ %following, %miss ]
  %offset = mul i64 %slot, {_table.strides[0]}
  %row_address = add i64 %offset, {_table.ctypes.data}
  %row = inttoptr i64 %row_address to ptr
  %start = load volatile i64, ptr %row
  %end_place = getelementptr i8, ptr %row, i64 {8 * _END}
  %end = load volatile i64, ptr %end_place
  %after_start = icmp ule i64 %start, %address
  %before_end = icmp ult i64 %address, %end
  %guarded = and i1 %after_start, %before_end
  br i1 %guarded, label %mend, label %miss
miss:
  %following = add i64 %slot, 1
  %more = icmp ult i64 %following, {_SLOTS}
  br i1 %more, label %look, label %strange
mend:
  %page = and i64 %address, {-_PAGE}
  %mapped = call i64 @mmap(i64 %page, i64 {_PAGE}, i32 {_PROT_READ},
                           i32 {_MAP_PRIVATE_FIXED_ANONYMOUS}, i32 -1, i64 0)
  %mended = icmp eq i64 %mapped, %page
  br i1 %mended, label %note, label %strange
note:
  %faults_place = getelementptr i8, ptr %row, i64 {8 * _FAULTS}
  %faults = atomicrmw volatile add ptr %faults_place, i64 1 seq_cst
  %noted = and i64 %faults, {_NOTED - 1}
  %first_note = mul i64 %slot, {_NOTED}
  %note_number = add i64 %first_note, %noted
  %note_offset = mul i64 %note_number, {_noted.itemsize}
  %note_address = add i64 %note_offset, {_noted.ctypes.data}
  %note_place = inttoptr i64 %note_address to ptr
  store volatile i64 %address, ptr %note_place
  ret void
strange:
  %restored = call i32 @sigaction(i32 %number, i64 {_previous_address}, i64 0)
  ret void
}}
"""
