"""The code takes the walks of the page on the architecture."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import FrameType

import pytest

import kafka_index
from tests.support.command_line import ROOT, run_here
from tests.support.restoring import copy_dump

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


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\| (\d+) \| `([\w.]+)` \|", re.MULTILINE)
PARTITION = "payments-0"
MIN_STEPS = 20


def one_log(data: Path) -> Path:
    """Copy a partition with transactions, its first log alone: each step is taken about once."""
    copy_dump(data, PARTITION)
    logs = sorted((data / PARTITION).glob("*.log"))
    for log in logs[1:]:
        for path in log.parent.glob(f"{log.stem}.*"):
            path.unlink()
    return data


def build(data: Path, output: Path) -> None:
    kafka_index.build_indexes(data, output, threads=1)


def lookup(data: Path, output: Path) -> None:
    queries = output.with_suffix(".csv")
    queries.write_text("topic,partition,offset\npayments,0,1\n")
    queries_path = ("--queries", queries, "--by", "offset", "--resolve", "record")
    result = run_here("lookup", "--input", data, *queries_path, "--output", output, "--threads", 1)
    assert result.returncode == 0, result.stderr


def export(data: Path, output: Path) -> None:
    kafka_index.export_records(data, output, isolation="read_committed", threads=1)


def restore(data: Path, output: Path) -> None:
    # One byte of a value: the batch that has it is lost.
    (log,) = (data / PARTITION).glob("*.log")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    kafka_index.restore_dump(data, output, new_topic_ids=True, threads=1)


WALKS = {
    "The path of a batch": build,
    "The path of a query": lookup,
    "The path of a record": export,
    "The path of a restored partition": restore,
}


def steps_of(title: str) -> list[str]:
    """Return the functions that a section of the page names, step by step."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    result = STEP.findall(section)
    assert [int(number) for number, _ in result] == list(range(1, len(result) + 1))
    return [name for _, name in result]


@pytest.mark.parametrize(("title", "run"), WALKS.items(), ids=WALKS)
def test_run_calls_the_steps_of_the_page_in_order(
    title: str, run: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    data = one_log(tmp_path / "data")
    steps = steps_of(title)
    assert len(steps) >= MIN_STEPS
    calls = calls_of(lambda: run(data, tmp_path / "output"))
    assert [step for step in steps if step not in calls] == []
    left = iter(calls)
    taken = [step for step in steps if step in left]
    assert taken == steps
