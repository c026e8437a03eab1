"""Exports: a file has its name once it is complete, and no record is lost while files change."""

from __future__ import annotations

import io
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq

from tests.outputs.output_tests import OLD, OutputTests
from tests.outputs.places import Files
from tests.support.record_tables import batch_of, write_partition

_DAY_MS = 86_400_000
_Rows = set[tuple[int, bytes]]


def log_of(offsets: range, word: bytes = b"old") -> bytes:
    """Batches of two records, on a day each."""
    return b"".join(
        batch_of(first, [(first * _DAY_MS, b"%d" % at, word) for at in (first, first + 1)])
        for first in offsets
        if first % 2 == 0
    )


class ExportTests(OutputTests):
    """Exports of two partitions, of which the older logs have fewer segments."""

    def write_inputs(self, data: Path, *, older: bool) -> None:
        logs = {base: log_of(range(base, base + 4)) for base in range(0, 4 if older else 8, 4)}
        for number in range(2):
            write_partition(data / "dump", logs, f"orders-{number}")


class TestExport(ExportTests):
    command: ClassVar[str] = (
        "export --input {data}/dump --output {out}/records --report {out}/report.csv"
    )


class TestExportByDate(ExportTests):
    command: ClassVar[str] = (
        "export --input {data}/dump --output {out}/records --by-date --format jsonl"
    )


class TestExportInBucket(ExportTests):
    command: ClassVar[str] = "export --input {data}/dump --output {out}/records"
    in_bucket: ClassVar[bool] = True


class ReplacingExportTests(OutputTests):
    """Exports of a log that was truncated and has grown again."""

    starts: ClassVar[tuple[str, ...]] = (OLD,)

    def write_inputs(self, data: Path, *, older: bool) -> None:
        log = log_of(range(40)) if older else log_of(range(30)) + log_of(range(30, 60), b"new")
        write_partition(data / "dump", {0: log}, "orders-0")

    def check_interrupted(self, found: Files, old: Files, new: Files) -> None:
        # Old or new records are complete, or will be with the staged files.
        visible, staged = rows_of(found, ".parquet"), rows_of(found, ".staged")
        assert rows_of(old, ".parquet") <= visible or rows_of(new, ".parquet") <= visible | staged


def rows_of(files: Files, ending: str) -> _Rows:
    """Return the records in the files with an ending."""
    rows: _Rows = set()
    for name, content in files.items():
        if name.endswith(ending):
            table = pq.ParquetFile(io.BytesIO(content)).read(["offset", "value"])
            rows |= set(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    return rows


class TestContinuedExport(ReplacingExportTests):
    command: ClassVar[str] = (
        "export --input {data}/dump --output {out}/records --on-data-loss continue"
    )
    earlier: ClassVar[str] = "export --input {data}/dump --output {out}/records"


class TestRestartedExport(ReplacingExportTests):
    command: ClassVar[str] = (
        "export --input {data}/dump --output {out}/records --on-data-loss restart"
    )
    earlier: ClassVar[str] = "export --input {data}/dump --output {out}/records"


class TestRestartedExportInBucket(TestRestartedExport):
    in_bucket: ClassVar[bool] = True
