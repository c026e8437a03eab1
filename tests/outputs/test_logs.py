"""Imports, rewrites and restores: a partition directory is the old one or the complete new one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

import kafka_index
from tests.outputs.output_tests import NONE, OLD, OutputTests
from tests.outputs.places import Files
from tests.support.restoring import Places, check_loadable_only_if_complete, damaged_dump


def write_tables(folder: Path, start: int) -> None:
    """Write records of two partitions, as files of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        offsets = range(start, start + 20)
        table = pa.table(
            {
                "topic": [f"t{number}"] * 20,
                "partition": pa.array([0] * 20, pa.int32()),
                "offset": list(offsets),
                "key": [b"key-%d" % (offset % 4) for offset in offsets],
                "value": [b"value-%d" % offset for offset in offsets],
                "timestamp": pa.array(offsets, pa.timestamp("ms", "UTC")),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")


class LogTests(OutputTests):
    """Commands that write logs to a data directory."""

    starts: ClassVar[tuple[str, ...]] = (NONE,)

    def unit(self, name: str) -> str:
        return os.path.dirname(name)


class ImportTests(LogTests):
    earlier: ClassVar[str] = "import --input {data}/tables --output {out}/logs"

    def write_inputs(self, data: Path, *, older: bool) -> None:
        if older or self.starts == (NONE,):
            write_tables(data / "tables", 0)
            write_tables(data / "more", 20)


class TestImport(ImportTests):
    command: ClassVar[str] = ImportTests.earlier


class TestOverwritingImport(ImportTests):
    command: ClassVar[str] = "import --input {data}/more --output {out}/logs --overwrite"
    starts: ClassVar[tuple[str, ...]] = (OLD,)
    skips_unchanged: ClassVar[bool] = False


class TestAppendingImport(ImportTests):
    command: ClassVar[str] = "import --input {data}/more --output {out}/logs --append"
    starts: ClassVar[tuple[str, ...]] = (OLD,)


class TestRewrite(LogTests):
    command: ClassVar[str] = (
        "rewrite --input {data}/logs --output {out}/kept --report {out}/report.json "
        "--drop-where \"key = 'key-1'\" --allow-revive"
    )

    def write_inputs(self, data: Path, *, older: bool) -> None:  # noqa: ARG002, see `starts`
        write_tables(data / "tables", 0)
        kafka_index.import_records(data / "tables", data / "logs")


class TestRestore(LogTests):
    """Restores of a damaged dump to a formatted directory, with a controller to seed."""

    command: ClassVar[str] = (
        "restore --input {data}/dump --config {settings} --output {out}/out "
        "--seed {out}/metadata --report {out}/reports/restore.json "
        "--summary {out}/reports/summary.json"
    )
    # The report has what is lost: that of a rerun, too.
    varying: ClassVar[re.Pattern[str]] = re.compile("kafka-index|summary")
    # The files at the root are written again, with the same bytes.
    skips_unchanged: ClassVar[bool] = False
    code: ClassVar[int] = 1

    def write_inputs(self, data: Path, *, older: bool) -> None:  # noqa: ARG002, see `starts`
        damaged_dump(data / "dump")

    def prepare(self, out: Path, *, older: bool) -> None:  # noqa: ARG002, see `starts`
        Places(out).make()

    def check_interrupted(self, found: Files, old: Files, new: Files) -> None:
        if found.get("out/meta.properties") != old["out/meta.properties"]:
            check_loadable_only_if_complete(found, new)
