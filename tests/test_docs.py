"""Pages of the documentation agree with the code that they describe, and name nothing else."""

from __future__ import annotations

import ast
import doctest
import re
import tomllib
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

import kafka_index
from kafka_index.commands.backup.result import BACKUP_REPORT_SCHEMA
from kafka_index.commands.build.result import FILE_SCHEMA
from kafka_index.commands.export.result import EXPORT_REPORT_SCHEMA
from kafka_index.commands.import_.result import IMPORT_SCHEMA
from kafka_index.commands.lookup.result import LOOKUP_REPORT_SCHEMA
from kafka_index.commands.metadata.read_tables import PARTITIONS_SCHEMA
from kafka_index.commands.predict.predict_job import PREDICT_SCHEMA
from kafka_index.commands.restore.result import RESTORE_SCHEMA
from kafka_index.commands.rewrite.result import REWRITE_REPORT_SCHEMA
from kafka_index.commands.stats.result import STATS_REPORT_SCHEMA
from kafka_index.commands.verify.result import VERIFY_SCHEMA
from kafka_index.core.cluster.metadata.tables import LAG_TABLES, METADATA_TABLES
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from tests.support.command_line import ROOT, run_here
from tools.docs import api_page

DOCS = ROOT / "docs"
ROWS = re.findall(
    r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
)
PUBLIC_NAMES = [name for name in dir(kafka_index) if not name.startswith("_")]
#: The functions of commands, each with an example.
FUNCTIONS = (
    "build_indexes",
    "export_records",
    "find_records",
    "import_records",
    "list_partitions",
    "lookup_offsets",
    "lookup_timestamps",
    "predict",
    "read_metadata",
    "read_schemas",
    "read_stats",
    "restore_dump",
    "rewrite_dump",
    "verify",
)


@cache
def texts() -> str:
    """All texts in the code, formatted ones in their parts, each after a line feed."""
    return "\n".join(
        node.value
        for path in sorted((ROOT / "kafka_index").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@pytest.mark.parametrize("message", ROWS)
def test_message_on_the_troubleshooting_page_exists_in_the_code(message: str) -> None:
    parts = [part for part in message.split("…") if part.strip(" :()/")]
    assert [part for part in parts if part not in texts()] == []


def test_documented_versions_equal_those_of_the_package_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "versions.md").read_text(encoding="utf-8")
    accepted = [project["requires-python"], *project["dependencies"]]
    ranges = re.findall(r"`([a-z]*>=[^`]*)`", page)
    assert ranges
    assert [range_ for range_ in ranges if range_ not in accepted] == []


def test_every_dependency_has_its_use_and_size_on_the_page_of_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "installation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| \d+ \| (.*) \|$", page, re.MULTILINE)
    extras = project["optional-dependencies"]
    users = [name for name in extras if name not in ("dev", "docs", "java")]
    needed = [*project["dependencies"], *(line for name in users for line in extras[name])]
    named = set(re.findall(r"`([a-z0-9-]+)`", " ".join(map(" ".join, rows))))
    assert {re.split(r"[><=\[]", line)[0] for line in needed} - named == set()
    assert set(users) - named == set()


def test_reference_is_written_from_the_docstrings() -> None:
    assert (DOCS / "api.md").read_text(encoding="utf-8") == api_page.page()


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^### kafka_index\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == PUBLIC_NAMES


@pytest.mark.parametrize("name", [name for name in PUBLIC_NAMES if name in FUNCTIONS])
def test_example_of_a_function_runs_on_the_example_dump(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    function = getattr(kafka_index, name)
    names = {"kafka_index": kafka_index}
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=names)
    assert example.examples
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example, out=printed.append).failed == 0, "".join(printed)


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r": ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.name for path in DOCS.glob("*.md")} | {"changelog.md"}
    assert sorted(navigation) == sorted(pages)


def test_documentation_page_has_at_most_200_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in DOCS.glob("*.md")}
    # The first is written from docstrings.
    exceptions = {"api.md", "architecture.md"}
    assert {name for name, lines in lengths.items() if lines > 200} <= exceptions


def test_help_pages_mentioned_in_messages_exist() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "kafka_index").rglob("*.py"))
    named = re.findall(r"help_page\(['\"](\w+)['\"]\)", code)
    assert len(named) >= 9
    assert [name for name in named if not (DOCS / f"{name}.md").is_file()] == []
    # An installation has no folder of pages beside it.
    assert "docs/" not in texts()


PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
#: The rows of reports and results, by their name in docs/reports.md.
REPORTS: dict[str, pa.Schema] = {
    "build": FILE_SCHEMA,
    "verify": VERIFY_SCHEMA,
    "predict": PREDICT_SCHEMA,
    "restore": RESTORE_SCHEMA,
    "rewrite": REWRITE_REPORT_SCHEMA,
    "backup": BACKUP_REPORT_SCHEMA,
    "export": EXPORT_REPORT_SCHEMA,
    "import_records": IMPORT_SCHEMA,
    "list_partitions": PARTITIONS_SCHEMA,
    "lookup": LOOKUP_REPORT_SCHEMA,
    "stats": STATS_REPORT_SCHEMA,
    "answers": ANSWER_SCHEMA,
    **{f"metadata --what {name}": table.schema for name, table in METADATA_TABLES.items()},
    **{f"metadata --what {name}": schema for name, schema in LAG_TABLES.items()},
}


def test_table_of_reports_has_the_columns_of_all_schemas() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| (`.+) \|$", PAGES["reports.md"], re.MULTILINE)
    assert dict(rows) == {
        name: ", ".join(
            f"`{column.name}` {column.type}{'?' if column.nullable else ''}" for column in schema
        )
        for name, schema in REPORTS.items()
    }


@pytest.mark.parametrize("name", [name for name in REPORTS if "partition" in REPORTS[name].names])
def test_number_of_a_partition_has_one_type(name: str) -> None:
    assert str(REPORTS[name].field("partition").type) == "int32"


@pytest.mark.parametrize(
    "name", ["predict", "restore", "rewrite", "backup", "export", "lookup", "stats"]
)
def test_report_begins_with_the_columns_of_all_reports(name: str) -> None:
    first = ["topic", "partition", "segment_base_offset", "path", "status", "reason_code", "reason"]
    assert REPORTS[name].names[:7] == first


@pytest.mark.parametrize("page", PAGES)
def test_files_and_modules_mentioned_on_a_page_exist(page: str) -> None:
    files = re.findall(
        r"`((?:benchmarks|conf|docs|examples|jobs|kafka_index|tests|tools)/[\w./-]+)`", PAGES[page]
    )
    modules = [
        name.replace(".", "/")
        for name in re.findall(r"python -m ((?:benchmarks|tests|tools)[\w.]*\w)", PAGES[page])
    ]
    # The reference program's jars are downloaded by the tests that need them.
    made = {"tests/conformance/reference/target"}
    assert [name for name in files if not (ROOT / name).exists() and name not in made] == []
    assert [
        name for name in modules if not any((ROOT / f"{name}{end}").exists() for end in ("", ".py"))
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_mentioned_on_a_page_exist(page: str) -> None:
    named = re.findall(r"(?:\$ |`|^    )kafka-index ([a-z][a-z-]*)\b", PAGES[page], re.MULTILINE)
    assert [name for name in set(named) if run_here(name, "--help").returncode] == []
    targets = re.findall(r"`make ([a-z]+)\b", PAGES[page])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in targets if f"\n{name}:" not in makefile] == []
