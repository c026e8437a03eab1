"""Commits to tables that are killed, meet other writers, or lose their answer: no row twice."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError
from requests.exceptions import JSONDecodeError

import kafka_index
from kafka_index.commands.export.replaced_rows import TableFile, replace_rows
from kafka_index.commands.export.request import ExportFormat, ExportRequest, History
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.commands.export.table_commit import (
    CommitConflictError,
    LakeTable,
    TableChange,
    Tables,
    table_errors,
)
from kafka_index.core.errors import InputError, PublishError, is_retriable
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.query.records import list_partitions
from tests.support.campaign import sample_size
from tests.support.command_line import COMMAND, Argument, environment, run_here
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.lake_tables import FORMATS, DeltaTables, ExportedLake, IcebergTables
from tests.support.record_tables import batch_of, write_partition

MODULES = (
    *("kafka_index.commands.export.iceberg", "kafka_index.commands.export.delta"),
    *("pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "pyiceberg.table"),
)


@pytest.fixture(params=[(form, history) for form in FORMATS for history in History], ids=" ".join)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ExportedLake:
    form, history = request.param
    return FORMATS[form](tmp_path / "lakes", history)


def log_of(offsets: range, word: bytes = b"old") -> bytes:
    """Batches of ten records, with tombstones, and keys that repeat."""

    def record(at: int) -> tuple[int, bytes, bytes | None]:
        return 1000 + at, b"%d" % (at % 97), None if at % 11 == 7 else b"%s %d" % (word, at)

    return b"".join(
        batch_of(first, list(map(record, range(first, first + 10))))
        for first in range(offsets.start, offsets.stop, 10)
    )


CUT_AND_GROWN = log_of(range(800)) + log_of(range(800, 1500), b"new")


def write(root: Path, log: bytes, partitions: int = 2) -> None:
    """Write partitions with the same log."""
    shutil.rmtree(root, ignore_errors=True)
    for number in range(partitions):
        write_partition(root, {0: log}, f"topic-{number}")


def values_of(root: Path, lake: ExportedLake) -> list[tuple[int, bytes]]:
    """Return the rows of the table of a dump, by partition and offset."""
    columns = ("partition", "offset", "key", "value")
    rows = kafka_index.read_records(root, columns=columns).read_all().to_pylist()
    if lake.history == "latest":
        newest = {(row["partition"], row["key"]): row for row in rows}.values()
        rows = [row for row in newest if row["value"] is not None]
        rows.sort(key=lambda row: (row["partition"], row["offset"]))
    return [(row["offset"], row["value"]) for row in rows]


def damaged(log: bytes) -> bytes:
    changed = bytearray(log)
    changed[3000] ^= 1
    return bytes(changed)


#: The logs of the runs before, the log of the killed run, and its options.
SCENARIOS: dict[str, tuple[list[bytes], bytes, tuple[Argument, ...]]] = {
    "first": ([], log_of(range(500)), ()),
    "grown": ([log_of(range(500))], log_of(range(900)), ()),
    "restarted": (
        [log_of(range(500)), log_of(range(1000))],
        CUT_AND_GROWN,
        ("--on-data-loss", "restart"),
    ),
    "completed": ([damaged(log_of(range(500)))], log_of(range(700)), ()),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledRuns]:
    """A process that has imported the libraries, and has used neither: they start threads."""
    root = tmp_path_factory.mktemp("warm-up")
    write(root / "in", log_of(range(20)))
    command = ("export", "--input", root / "in", "--output", root / "out")
    with KilledRuns(*command, prepared=MODULES) as killed:
        yield killed


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rerun_completes_a_killed_commit(
    tmp_path: Path, lake: ExportedLake, runs: KilledRuns, scenario: str
) -> None:
    before, log, options = SCENARIOS[scenario]
    dump, template = tmp_path / "in", tmp_path / "template"
    command = ("--input", dump, *lake.options, *options)
    for earlier in before:
        write(dump, earlier)
        assert run_here("export", "--input", dump, *lake.options).returncode in (0, 1)
    old = lake.values("topic") if before else []
    write(dump, log)
    new = values_of(dump, lake)
    shutil.copytree(lake.folder, template)
    calls = runs.failing(Path(), 1 << 40, Failure.CALL, "export", *command).calls
    assert lake.values("topic") == new
    draw = random.Random(f"{scenario} {type(lake).__name__}")
    kills = [(Failure.CALL, draw.randrange(1, calls)) for _ in range(sample_size(25))]
    kills += [(Failure.KILL, draw.randrange(1, 70)) for _ in range(sample_size(20))]
    kills += [(Failure.TIME, draw.randrange(1, 400)) for _ in range(sample_size(10))]
    for failure, step in kills:
        lake.copy_from(template)
        place = lake.folder if failure is Failure.KILL else Path()
        ended = runs.failing(place, step, failure, "export", *command)
        assert ended.code in (0, -signal.SIGKILL), (step, ended.stderr)
        assert lake.rows_if_any("topic") in (old, new), (failure, step)
        second_result = run_here("export", *command)
        assert second_result.returncode == 0, (failure, step, second_result.stderr)
        assert lake.values("topic") == new, (failure, step)
        assert len(set(lake.files("topic"))) == len(lake.files("topic")), (failure, step)


def test_three_concurrent_runs_add_each_record_once(tmp_path: Path, lake: ExportedLake) -> None:
    dump = tmp_path / "in"
    command = [*COMMAND, "export", "--input", str(dump), *map(str, lake.options)]
    write(dump, log_of(range(900)))
    for _ in range(2):
        started = [
            subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
            for _ in range(3)
        ]
        codes = {each.wait() for each in started}
        assert 0 in codes
        assert codes <= {0, 3}
    assert lake.values("topic") == values_of(dump, lake)


def open_tables(dump: Path, lake: ExportedLake) -> Tables:
    """Open the tables of an export as a run does, without its lock."""
    given = dict(zip(lake.options[::2], map(str, lake.options[1::2]), strict=True))
    names = ("format", "output", "catalog", "namespace", "history")
    fields = {name: given[f"--{name}"] for name in names if f"--{name}" in given}
    request = ExportRequest.build({"inputs": [str(dump)], **fields})
    tables = Tables.for_request(request)
    form, history = ExportFormat(given["--format"]), History(lake.history)
    settings = ExportSettings(str(lake.output), form, history=history)
    tables.open(list_partitions([str(dump)]).files, settings)
    return tables


def test_data_file_removed_before_its_commit_ends_the_run(
    complete_files: Path, lake: ExportedLake
) -> None:
    before = lake.values("topic")
    folder = lake.folder_of(1)
    committed, new = sorted(folder.glob("*.parquet"))
    moved = new.rename(lake.output.parent / new.name)
    result = run_here("export", "--input", complete_files, *lake.options)
    assert result.returncode == 2, result.stderr
    assert f"{folder}: data files were removed before they were committed" in result.stdout
    assert "(expected 1 data file from offset 500 on, found 0)" in result.stdout
    assert lake.values("topic") == before
    # What was committed may be compacted and removed by other tools.
    moved.rename(new)
    content = committed.read_bytes()
    committed.unlink()
    assert run_here("export", "--input", complete_files, *lake.options).returncode == 0
    committed.write_bytes(content)
    assert lake.values("topic") == values_of(complete_files, lake)


def test_recreated_table_without_its_data_files_is_rejected(
    complete_files: Path, lake: ExportedLake
) -> None:
    if isinstance(lake, IcebergTables):
        lake.catalog.drop_table(lake.table("topic").name())
    else:
        shutil.rmtree(lake.output / "topic" / "_delta_log")
    min(lake.folder_of(0).glob("*.parquet")).unlink()
    result = run_here("export", "--input", complete_files, *lake.options)
    assert result.returncode == 2, result.stderr
    assert "(expected 2 data files from offset 0 on, found 1)" in result.stdout


@pytest.mark.parametrize("is_damaged", [False, True], ids=["intact", "damaged"])
def test_rejected_topic_does_not_prevent_the_commit_of_other_topics(
    complete_files: Path, lake: ExportedLake, tmp_path: Path, *, is_damaged: bool
) -> None:
    before = lake.values("topic")
    for number in (0, 1):
        max(lake.folder_of(number).glob("*.parquet")).unlink()
    if is_damaged:
        shutil.rmtree(complete_files)
        write(complete_files, log_of(range(100)))
    write_partition(complete_files, {0: log_of(range(50))}, "zebra-0")
    report = tmp_path / "report.json"
    result = run_here("export", "--input", complete_files, *lake.options, "--report", report)
    assert result.returncode == 2, result.stderr
    assert "data files were removed before they were committed" in result.stdout
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(row["topic"], row["status"]) for row in rows] == [
        ("topic", "failed"),
        ("topic", "failed"),
        ("zebra", "exported"),
    ]
    assert lake.values("topic") == before
    assert len(lake.values("zebra")) == len({offset for offset, _ in lake.values("zebra")}) > 0


@pytest.mark.parametrize("lake", [(form, History.LATEST) for form in FORMATS], indirect=True)
def test_type_error_in_a_merge_is_not_retried(
    complete_files: Path, lake: ExportedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tool has written a file with other types than those of the table."""
    for path in lake.files("topic"):
        rows = pq.read_table(path)
        number = rows.schema.get_field_index("value")
        lists = pa.array([[1]] * len(rows), pa.list_(pa.int64()))
        pq.write_table(rows.set_column(number, "value", lists), path)
    merges = count_merges(monkeypatch)
    result = run_here("export", "--input", complete_files, *lake.options)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "cannot replace rows of the table: ArrowNotImplementedError" in result.stdout
    assert len(merges) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pa.ArrowInvalid("no such type"), InputError),
        (pa.ArrowTypeError("not a string"), InputError),
        (SchemaMismatchError("no such column"), InputError),
        (KeyError("id"), InputError),
        (OSError("connection reset"), PublishError),
        (FileNotFoundError("gone"), PublishError),
        (JSONDecodeError("no JSON", "<html>", 0), PublishError),
        (pa.ArrowMemoryError("out of memory"), PublishError),
        (DeltaError("no answer"), PublishError),
        (CommitFailedError("version 3 exists"), CommitConflictError),
        (TypeError("not callable"), TypeError),
        (PublishError("disk full"), PublishError),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, Exception) else case.__name__,
)
def test_only_conflicts_and_environment_errors_of_libraries_are_retriable(
    error: Exception, expected: type[Exception]
) -> None:
    with (
        pytest.raises(expected) as caught,
        table_errors(
            "commit", "lake", conflicts=(CommitFailedError,), permanent=(SchemaMismatchError,)
        ),
    ):
        raise error
    assert type(caught.value) is expected
    assert is_retriable(caught.value) is issubclass(expected, PublishError)


@pytest.fixture
def complete_files(tmp_path: Path, lake: ExportedLake, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dump whose files are complete, up to offset 500 committed, and not after it."""
    dump = tmp_path / "in"
    write(dump, log_of(range(500)))
    assert run_here("export", "--input", dump, *lake.options).returncode == 0
    write(dump, log_of(range(900)))
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "commit", lambda _self, _partitions: None)
        assert run_here("export", "--input", dump, *lake.options).returncode == 0
    assert lake.values("topic") != values_of(dump, lake)
    return dump


def commit(tables: Tables, partitions: int = 2) -> None:
    """Commit what is complete, as a run without new records does."""
    for table in tables._tables.values():
        own = [TopicPartition("topic", number) for number in range(partitions)]
        tables._commit_topic(table, own)


def on_commit(
    tables: Tables, action: Callable[[LakeTable, TableChange, Callable[[TableChange], None]], None]
) -> None:
    """Do something else in the first commit to each table."""
    for table in tables._tables.values():

        def first(
            change: TableChange, table: LakeTable = table, own: object = table.commit
        ) -> None:
            table.commit = own  # type: ignore[method-assign, assignment]
            action(table, change, own)  # type: ignore[arg-type]

        table.commit = first  # type: ignore[method-assign]


def count_merges(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list to which each merge of rows adds its table files."""
    merges: list[object] = []

    def merge(files: Sequence[TableFile], *arguments: Any) -> tuple[list[str], list[str]]:
        merges.append(files)
        return replace_rows(files, *arguments)

    monkeypatch.setattr("kafka_index.commands.export.table_commit.replace_rows", merge)
    return merges


def test_three_writers_of_one_version_commit_once(complete_files: Path, lake: ExportedLake) -> None:
    version = lake.version("topic")
    barrier = threading.Barrier(3)
    conflicts = []

    def run_concurrently(
        _table: LakeTable, change: TableChange, own: Callable[[TableChange], None]
    ) -> None:
        barrier.wait()
        try:
            own(change)
        except CommitConflictError as error:
            conflicts.append(error)
            raise

    writers = []
    for _ in range(3):
        tables = open_tables(complete_files, lake)
        on_commit(tables, run_concurrently)
        writers.append(threading.Thread(target=commit, args=(tables,)))
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(conflicts) == 2
    assert lake.version("topic") == version + 1
    assert lake.values("topic") == values_of(complete_files, lake)


@pytest.mark.parametrize("error", [CommitConflictError, PublishError])
def test_commit_with_a_lost_response_is_not_repeated(
    complete_files: Path, lake: ExportedLake, error: type[PublishError]
) -> None:
    version = lake.version("topic")

    def lose_response(
        _table: LakeTable, change: TableChange, own: Callable[[TableChange], None]
    ) -> None:
        own(change)
        raise error("the connection was closed")

    tables = open_tables(complete_files, lake)
    on_commit(tables, lose_response)
    commit(tables)
    assert lake.version("topic") == version + 1
    assert lake.values("topic") == values_of(complete_files, lake)


@pytest.mark.parametrize("error", [CommitConflictError, PublishError])
def test_rerun_completes_a_run_whose_commits_all_failed(
    tmp_path: Path, lake: ExportedLake, monkeypatch: pytest.MonkeyPatch, error: type[PublishError]
) -> None:
    dump = tmp_path / "in"
    write(dump, log_of(range(500)))
    command = ("--input", dump, *lake.options)

    def fail(self: LakeTable, _change: TableChange) -> None:
        raise error("no answer", path=self.name)

    with monkeypatch.context() as patch:
        name = "delta._DeltaTable" if isinstance(lake, DeltaTables) else "iceberg._IcebergTable"
        patch.setattr(f"kafka_index.commands.export.{name}.commit", fail)
        patch.setattr("kafka_index.commands.export.table_commit.time.sleep", lambda _seconds: None)
        result = run_here("export", *command)
    assert result.returncode == 3, result.stdout
    assert "no answer" in result.stdout
    assert lake.values("topic") == []
    assert run_here("export", *command).returncode == 0
    assert lake.values("topic") == values_of(dump, lake)


@pytest.mark.parametrize("lake", [("delta", History.FULL)], indirect=True)
def test_run_whose_commit_failed_reports_missing_offsets(
    tmp_path: Path, lake: ExportedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run does not read these offsets again."""
    dump, report = tmp_path / "in", tmp_path / "report.json"
    write(dump, log_of(range(50)) + log_of(range(60, 100)), 1)

    def fail(self: LakeTable, _change: TableChange) -> None:
        raise InputError("rejected", path=self.name)

    monkeypatch.setattr("kafka_index.commands.export.delta._DeltaTable.commit", fail)
    result = run_here("export", "--input", dump, *lake.options, "--report", report)
    assert result.returncode == 2, result.stdout
    (row,) = map(json.loads, report.read_text().splitlines())
    assert (row["status"], row["missing_ranges"]) == ("failed", 1)


def test_rows_added_concurrently_by_another_tool_are_kept(
    complete_files: Path, lake: ExportedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges = count_merges(monkeypatch)
    other = lake.read("topic").slice(0, 1)
    number = other.schema.get_field_index("partition")
    other = other.set_column(number, "partition", pa.array([7], other.schema.field(number).type))

    def add(_table: LakeTable, change: TableChange, own: Callable[[TableChange], None]) -> None:
        lake.append("topic", other)
        own(change)

    tables = open_tables(complete_files, lake)
    on_commit(tables, add)
    commit(tables)
    assert len(lake.values("topic")) == len(values_of(complete_files, lake)) + 1
    # The second attempt reuses the written files.
    assert len(merges) == (lake.history == "latest")
    tables = open_tables(complete_files, lake)
    commit(tables)
    assert len(lake.values("topic")) == len(values_of(complete_files, lake)) + 1


def test_files_rewritten_concurrently_by_another_tool_duplicate_no_row(
    tmp_path: Path, lake: ExportedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "in"
    for count in (500, 900):
        write(dump, log_of(range(count)), partitions=1)
        assert run_here("export", "--input", dump, *lake.options).returncode == 0
    write(dump, CUT_AND_GROWN, partitions=1)
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "commit", lambda _self, _partitions: None)
        command = ("--input", dump, *lake.options, "--on-data-loss", "restart")
        assert run_here("export", *command).returncode == 0

    def rewrite(_table: LakeTable, change: TableChange, own: Callable[[TableChange], None]) -> None:
        lake.compact("topic")
        own(change)

    tables = open_tables(dump, lake)
    on_commit(tables, rewrite)
    commit(tables, partitions=1)
    assert lake.values("topic") == values_of(dump, lake)


def test_rows_without_a_partition_are_kept_when_files_are_replaced(
    tmp_path: Path, lake: ExportedLake
) -> None:
    """Another tool has added them to the table, and compacted it."""
    dump = tmp_path / "in"
    write(dump, log_of(range(900)), partitions=1)
    assert run_here("export", "--input", dump, *lake.options).returncode == 0
    other = lake.read("topic").slice(0, 1)
    number = other.schema.get_field_index("partition")
    kind = other.schema.field(number).type
    lake.append("topic", other.set_column(number, "partition", pa.nulls(1, kind)))
    lake.compact("topic")
    assert len(lake.files("topic")) == 1
    write(dump, CUT_AND_GROWN)
    result = run_here("export", "--input", dump, *lake.options, "--on-data-loss", "restart")
    assert result.returncode == 0, result.stdout + result.stderr
    row = other["offset"][0].as_py(), other["value"][0].as_py()
    assert lake.values("topic") == [*values_of(dump, lake), row]


def test_partition_between_those_of_a_compacted_file_is_added(
    tmp_path: Path, lake: ExportedLake
) -> None:
    dump = tmp_path / "in"
    for number in (0, 2):
        write_partition(dump, {0: log_of(range(50))}, f"topic-{number}")
    command = ("--input", dump, *lake.options)
    assert run_here("export", *command).returncode == 0
    lake.compact("topic")
    write(dump, log_of(range(50)), partitions=3)
    result = run_here("export", *command)
    assert result.returncode == 0, result.stderr
    assert lake.values("topic") == values_of(dump, lake)


def test_rewriting_files_neither_loses_nor_duplicates_rows(
    tmp_path: Path, lake: ExportedLake
) -> None:
    """Other tools compact tables, and a restart then replaces rows of merged files."""
    dump = tmp_path / "in"
    for count in (500, 900):
        write(dump, log_of(range(count)))
        assert run_here("export", "--input", dump, *lake.options).returncode == 0
    lake.compact("topic")
    assert len(lake.files("topic")) == 1
    write(dump, log_of(range(1000)))
    assert run_here("export", "--input", dump, *lake.options).returncode == 0
    assert lake.values("topic") == values_of(dump, lake)
    # Both partitions are in one file by now.
    write(dump, CUT_AND_GROWN)
    command = ("--input", dump, *lake.options, "--on-data-loss", "restart")
    result = run_here("export", *command)
    assert result.returncode == 0, result.stderr
    assert lake.values("topic") == values_of(dump, lake)
