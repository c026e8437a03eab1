"""Holds processes at a step; Python imports this when it starts, where it is on the path.

See `tests.support.gates`. The step is a file that is about to be opened, renamed or removed, at
which Python's audit hooks are called: in workers of Spark, too, and in no line of the product. Or
it is a chunk of a scan.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

_POLL_SECONDS = 0.005


def _hold_at(event: str, ending: str, folder: str) -> None:
    opened, signalled = os.path.join(folder, "open"), os.path.join(folder, "signalled")

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        # os.rename: source, destination, and two descriptors; the others begin with the path.
        if name != event or not str(arguments[name == "os.rename"]).endswith(ending):
            return
        if os.path.exists(opened) or _may_pass(folder):
            return
        name = f"waiting-{os.getpid()}-{threading.get_native_id()}"
        os.close(os.open(os.path.join(folder, name), os.O_CREAT))
        while os.path.exists(folder) and not os.path.exists(opened):
            if os.path.exists(signalled) and _main_thread_has_noticed():
                return
            time.sleep(_POLL_SECONDS)

    sys.addaudithook(hook)


def _may_pass(folder: str) -> bool:
    """Use up one of the passes, which all processes share."""
    for name in os.listdir(folder):
        if name.startswith("pass-"):
            try:
                os.rmdir(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            return True
    return False


def _main_thread_has_noticed() -> bool:
    """Return whether a signal has ended what the main thread did: it waits for its threads."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "shutdown":
            return True
        frame = frame.f_back
    return False


def _stop_before_chunk(count: int) -> None:
    """Stop this process, as SIGSTOP does, before the n-th chunk that it scans."""
    left = count

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        code = frame.f_code
        if event == "call" and code.co_name == "scan" and code.co_filename.endswith("scanner.py"):
            left -= 1
            if left == 0:
                # To this thread, which stops before it returns from here.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    threading.setprofile(profile)


_STEP = os.environ.get("KAFKA_INDEX_TEST_GATE")
if _STEP is not None:
    _hold_at(*_STEP.split(":"))
_CHUNK = os.environ.get("KAFKA_INDEX_TEST_CHUNK")
if _CHUNK is not None:
    _stop_before_chunk(int(_CHUNK))
