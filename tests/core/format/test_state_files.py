"""State files, decoded by several threads."""

from __future__ import annotations

import sys

from tests.support.command_line import run_program

# Each round has types that no thread has used before.
_FIRST_USES = """
import sys, threading
from dataclasses import make_dataclass
from kafka_index.core.format.state_files import decode_state

sys.setswitchinterval(1e-6)

def decode(kind):
    barrier.wait()
    assert decode_state('{"a": {"b": 1, "c": 2}, "d": 3}', kind).a.c == 2

for _ in range(1000):
    inner = make_dataclass("Inner", [("b", int), ("c", int)])
    outer = make_dataclass("Outer", [("a", inner), ("d", int)])
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=decode, args=(outer,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_type_first_used_by_several_threads_is_decoded() -> None:
    result = run_program(sys.executable, "-c", _FIRST_USES)
    assert (result.returncode, result.stderr) == (0, "")
