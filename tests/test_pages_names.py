"""The pages name columns, files, modules and commands that exist."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from kafka_index.api import dumps, writing
from kafka_index.backup.result import BACKUP_REPORT_SCHEMA
from kafka_index.build.report import REPORT_SCHEMA
from kafka_index.export.report import EXPORT_REPORT_SCHEMA
from kafka_index.lookup import LOOKUP_REPORT_SCHEMA
from kafka_index.lookup.lag import LAG_TABLES
from kafka_index.metadata.tables import METADATA_TABLES
from kafka_index.reading.answers import ANSWER_SCHEMA
from kafka_index.restore.result import RESTORE_SCHEMA
from kafka_index.startup.prediction import SEGMENT_ROWS
from kafka_index.verification.findings import VERIFY_SCHEMA
from kafka_index.writing.rewrite_job import REWRITE_REPORT_SCHEMA
from tests.support.command_line import ROOT, run_here

PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
#: The rows of reports and results, by their name in docs/reports.md.
REPORTS: dict[str, pa.Schema] = {
    "build": REPORT_SCHEMA,
    "verify": VERIFY_SCHEMA,
    "predict": SEGMENT_ROWS,
    "restore": RESTORE_SCHEMA,
    "rewrite": REWRITE_REPORT_SCHEMA,
    "backup": BACKUP_REPORT_SCHEMA,
    "export": EXPORT_REPORT_SCHEMA,
    "import_records": writing._IMPORT_SCHEMA,
    "list_partitions": dumps._PARTITIONS,
    "lookup": LOOKUP_REPORT_SCHEMA,
    "answers": ANSWER_SCHEMA,
    **{f"metadata --what {name}": table.schema for name, table in METADATA_TABLES.items()},
    **{f"metadata --what {name}": schema for name, schema in LAG_TABLES.items()},
}


def test_the_table_of_reports_has_the_columns_of_all_schemas() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| (`.+) \|$", PAGES["reports.md"], re.MULTILINE)
    assert dict(rows) == {
        name: ", ".join(
            f"`{column.name}` {column.type}{'?' if column.nullable else ''}" for column in schema
        )
        for name, schema in REPORTS.items()
    }


@pytest.mark.parametrize("name", [name for name in REPORTS if "partition" in REPORTS[name].names])
def test_the_number_of_a_partition_has_one_type(name: str) -> None:
    assert str(REPORTS[name].field("partition").type) == "int32"


@pytest.mark.parametrize("name", ["predict", "restore", "rewrite", "backup", "export", "lookup"])
def test_a_report_begins_with_the_columns_of_all_reports(name: str) -> None:
    first = ["topic", "partition", "segment_base_offset", "path", "status", "reason_code", "reason"]
    assert REPORTS[name].names[:7] == first


@pytest.mark.parametrize("page", PAGES)
def test_files_and_modules_that_a_page_names_exist(page: str) -> None:
    files = re.findall(
        r"`((?:benchmarks|conf|docs|examples|jobs|kafka_index|tests|tools)/[\w./-]+)`", PAGES[page]
    )
    modules = [
        name.replace(".", "/")
        for name in re.findall(r"python -m ((?:benchmarks|tests|tools)[\w.]*\w)", PAGES[page])
    ]
    # The judge's jars are downloaded by the tests that need them.
    made = {"tests/conformance/judge/target"}
    assert [name for name in files if not (ROOT / name).exists() and name not in made] == []
    assert [
        name for name in modules if not any((ROOT / f"{name}{end}").exists() for end in ("", ".py"))
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"(?:\$ |`|^    )kafka-index ([a-z][a-z-]*)\b", PAGES[page], re.MULTILINE)
    assert [name for name in set(named) if run_here(name, "--help").returncode] == []
    targets = re.findall(r"`make ([a-z]+)\b", PAGES[page])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in targets if f"\n{name}:" not in makefile] == []
