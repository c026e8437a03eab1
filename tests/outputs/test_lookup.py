"""Lookups: the answers to all queries are the old ones or the new ones."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq

from tests.outputs.output_tests import NONE, OLD, OutputTests
from tests.outputs.places import Files
from tests.support.damaged_dumps import write_dump

_BY_OFFSET = "lookup --logs {data}/dump --by offset --queries {data}/queries"
_IN_FOLDER = re.compile("answers/")


class LookupTests(OutputTests):
    """Lookups of queries in two files, of which the older ones ask for other offsets."""

    starts: ClassVar[tuple[str, ...]] = (NONE,)

    def write_inputs(self, data: Path, *, older: bool) -> None:
        if not (data / "dump").exists():
            write_dump(data / "dump")
            (data / "queries").mkdir()
        for number in range(2):
            offsets = range(number, 20 - 5 * older, 2)
            rows = "".join(f"orders,0,{offset}\n" for offset in offsets)
            query = data / f"queries/{number}.csv"
            query.write_text(f"topic,partition,offset\n{rows}")
        times = "orders,0,-2\n" if older else "orders,0,-1\n"
        (data / "times.csv").write_text(f"topic,partition,timestamp\n{times}")

    def unit(self, name: str) -> str:
        return name.split("/", maxsplit=1)[0]

    def check_interrupted(self, found: Files, old: Files, new: Files) -> None:
        # Answers that the input could not give have a status that says so.
        if not any(map(has_unreadable, found.items())):
            super().check_interrupted(found, old, new)


def has_unreadable(file: tuple[str, bytes]) -> bool:
    """Return whether a file of answers has queries whose logs could not be read."""
    name, content = file
    if name.endswith(".parquet"):
        return "unreadable" in pq.read_table(io.BytesIO(content))["status"].to_pylist()
    return b"unreadable" in content


class OverwritingTests(LookupTests):
    starts: ClassVar[tuple[str, ...]] = (OLD,)
    skips_unchanged: ClassVar[bool] = False


class TestFolder(LookupTests):
    command: ClassVar[str] = f"{_BY_OFFSET} --output {{out}}/answers --resolve record"


class TestOverwrittenFolder(OverwritingTests):
    command: ClassVar[str] = f"{_BY_OFFSET} --output {{out}}/answers --overwrite"


class TestParquetFile(LookupTests):
    command: ClassVar[str] = f"{_BY_OFFSET} --output {{out}}/answers.parquet"


class TestOverwrittenFile(OverwritingTests):
    command: ClassVar[str] = (
        "lookup --logs {data}/dump --by timestamp --queries {data}/times.csv --overwrite "
        "--output {out}/answers.csv --starting-offsets {out}/starts.json --report {out}/report.csv"
    )


class InBucket(LookupTests):
    in_bucket: ClassVar[bool] = True
    is_locked: ClassVar[bool] = False

    def check_interrupted(self, found: Files, old: Files, new: Files) -> None:
        # A folder without the file of success is incomplete for its readers.
        if "answers/_SUCCESS" in found or not any(map(_IN_FOLDER.match, found)):
            super().check_interrupted(found, old, new)


class TestFolderInBucket(InBucket, TestFolder):
    pass


class TestOverwrittenFolderInBucket(InBucket, TestOverwrittenFolder):
    pass


class TestParquetFileInBucket(InBucket, TestParquetFile):
    pass
