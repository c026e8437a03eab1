"""Human-readable numbers, sizes, durations and paths."""

from __future__ import annotations

import os

_UNITS = ("kB", "MB", "GB", "TB", "PB")
_MINUTE = 60
_HOUR = 3600


def format_bytes(size_bytes: float) -> str:
    """Format a size in decimal units: ``512 B``, ``4.05 MB``, ``2.15 GB``."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    scaled = size_bytes
    unit = ""
    for unit in _UNITS:  # noqa: B007, because the unit at the break is the one to print
        scaled /= 1000
        if scaled < 999.5:
            break
    digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:.{digits}f} {unit}"


def format_count(count: int) -> str:
    """Format a count with thousands separators: ``1,234,567``."""
    return f"{count:,}"


def format_seconds(seconds: float) -> str:
    """Format a duration: ``0.42 s``, ``12.3 s``, ``3 min 05 s``, ``1 h 02 min``."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole_seconds = round(seconds)
    if whole_seconds < _HOUR:
        return f"{whole_seconds // _MINUTE} min {whole_seconds % _MINUTE:02d} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def shown_path(path: str) -> str:
    """Return a path relative to the working directory if it is below it."""
    if "://" in path:
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
