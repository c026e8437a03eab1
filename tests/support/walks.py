"""The functions of the package that a run enters, in order, kernels included."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import FrameType

import kafka_index

_PACKAGE = Path(kafka_index.__file__).parent


def calls_of(action: Callable[[], object]) -> list[str]:
    """Run an action; return the calls of functions on all threads, in their order.

    A function is named by its module and its qualified name: ``scan.scanner.Scanner.scan``. A
    kernel is one of them where Python calls it. Functions inside of others, and the bodies of
    modules and classes, are left out.
    """
    calls: list[str] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        module = _module_in(code.co_filename) if event == "call" else None
        if module is not None and code.co_flags & CO_NEWLOCALS and "<" not in code.co_qualname:
            calls.append(f"{module}.{code.co_qualname}")

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    return calls


@functools.cache
def _module_in(file: str) -> str | None:
    """Return the name of a module below the package; None for a file that is not in it."""
    path = Path(file)
    if not path.is_relative_to(_PACKAGE):
        return None
    return ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
