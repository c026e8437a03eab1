"""Compiled loops: scan with CRC, choice of sparse entries, slot search, producers.

Loops over ``uint8`` and int64 arrays that the caller provides, with integer codes for results: no
objects, no exceptions. Numba and google-crc32c are imported in this room alone. A kernel is
imported from its module: a process loads only the kernels that it calls.
"""
