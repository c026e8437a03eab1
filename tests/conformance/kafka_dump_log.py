"""The output of Kafka's own ``kafka-dump-log``, line by line."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from .kafka_jars import class_path, needing_kafka, tool

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_TOOL = "org.apache.kafka.tools.DumpLogSegments"
_BEGINS = "Dumping "
#: Lines about a file as a whole.
_REMARKS = ("Log starting offset: ", "Snapshot end offset: ")


def kafka_dump(files: Iterable[Path]) -> dict[Path, list[str]]:
    """The lines of each file, without those about the file as a whole.

    It skips the test where Kafka cannot run, and fails it where Kafka has to.
    """
    by_name = {str(path): path for path in files}
    with needing_kafka():
        command = [tool("java"), "-cp", class_path(), _TOOL, "--files", ",".join(by_name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[Path, list[str]] = {}
    lines: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith(_BEGINS):
            lines = found.setdefault(by_name[line.removeprefix(_BEGINS)], [])
        elif line != f"{_empty(found)} is empty." and not line.startswith(_REMARKS):
            lines.append(line)
    assert set(found) == set(by_name.values())
    return found


def _empty(found: dict[Path, list[str]]) -> Path | None:
    """The file that is being dumped, for the line that Kafka prints when it has no entries."""
    return next(reversed(found), None)
