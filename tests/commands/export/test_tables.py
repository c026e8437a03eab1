"""``export --format iceberg|delta``: the rows of tables, what a rerun adds, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.servers.s3 import S3Server
from tests.support.command_line import COMMAND, DUMP, Argument, run_here, run_program
from tests.support.lake_tables import (
    FORMATS,
    DeltaTables,
    ExportedLake,
    as_records,
    duckdb_rows,
    polars_rows,
    records_of,
)
from tests.support.random_avro import encode
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import schema_record, write_topic
from tests.support.remote import new_bucket, storage_options
from tests.support.typed_dump import framed

from .test_data_loss import CUT_AND_GROWN, DELETED, MADE_ANEW, log_of, rows_of, write


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ExportedLake:
    return FORMATS[request.param](tmp_path / "lakes")


def export(code: int, dump: Path, lake: ExportedLake, *more: Argument) -> str:
    result = run_here("export", "--input", dump, *lake.options, *more)
    assert result.returncode == code, (result.stdout, result.stderr)
    return result.stdout + result.stderr


@pytest.mark.parametrize("by_date", [(), ("--by-date",)], ids=["whole", "by date"])
def test_tables_of_a_dump_equal_its_records_in_every_reader(
    lake: ExportedLake, monkeypatch: pytest.MonkeyPatch, by_date: tuple[str, ...]
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    # Among them are headers, compacted gaps, and timestamps outside of the calendar.
    chosen = ("--topics", "imported-history|customer-profiles|payments|__transaction_state")
    export(0, DUMP, lake, *chosen, *by_date)
    for topic in lake.topics:
        expected = records_of(DUMP, topics=[topic])
        assert as_records(lake.read(topic)).equals(expected), topic
        if lake.files(topic):
            assert as_records(duckdb_rows(lake.files(topic))).equals(expected), topic
        assert as_records(polars_rows(lake, topic)).equals(expected), topic
    assert "committed" not in export(0, DUMP, lake, *chosen, *by_date)


def test_rerun_commits_new_records_only(tmp_path: Path, lake: ExportedLake) -> None:
    dump = tmp_path / "in"
    for count, versions in ((500, 1), (500, 1), (1000, 2)):
        write(dump, {0: log_of(range(count))})
        export(0, dump, lake)
        assert lake.values("topic") == rows_of(dump)
        assert lake.version("topic") == versions


@pytest.mark.parametrize("by_date", [(), ("--by-date",)], ids=["whole", "by date"])
@pytest.mark.parametrize(
    ("segments", "choice"),
    [(CUT_AND_GROWN, "continue"), (CUT_AND_GROWN, "restart"), (MADE_ANEW, "restart")],
    ids=["cut, continued", "cut, restarted", "made anew"],
)
def test_rows_of_a_diverged_log_are_replaced_in_one_commit(
    tmp_path: Path,
    lake: ExportedLake,
    segments: dict[int, bytes],
    choice: str,
    by_date: tuple[str, ...],
) -> None:
    dump = tmp_path / "in"
    for count in (500, 1000):
        write(dump, {0: log_of(range(count))})
        export(0, dump, lake, *by_date)
    old, version = set(lake.files("topic")), lake.version("topic")
    write(dump, segments)
    export(1, dump, lake, *by_date)
    assert lake.version("topic") == version
    export(0, dump, lake, *by_date, "--on-data-loss", choice)
    assert lake.values("topic") == rows_of(dump)
    # Snapshots of before can still be read.
    assert all(Path(path).exists() for path in old)
    assert lake.version("topic") == version + 1
    write(dump, {0: segments[0] + log_of(range(1500, 1700), b"later")})
    export(0, dump, lake, *by_date)
    assert lake.values("topic") == rows_of(dump)


def test_offsets_deleted_before_their_export_are_skipped(
    tmp_path: Path, lake: ExportedLake
) -> None:
    dump = tmp_path / "in"
    write(dump, {0: log_of(range(500))})
    export(0, dump, lake)
    before = lake.values("topic")
    write(dump, DELETED)
    export(0, dump, lake, "--on-data-loss", "continue")
    assert lake.values("topic") == before + rows_of(dump)


@pytest.mark.parametrize("by_date", [(), ("--by-date",)], ids=["whole", "by date"])
def test_export_of_a_repaired_batch_replaces_the_rows_of_its_range(
    tmp_path: Path, lake: ExportedLake, by_date: tuple[str, ...]
) -> None:
    dump = tmp_path / "in"
    damaged = bytearray(log_of(range(500)))
    damaged[3000] ^= 1
    for count in (500, 700):
        write(dump, {0: bytes(damaged) + log_of(range(500, count))})
        export(1, dump, lake, *by_date)
        # One batch of ten records is left out.
        rows = lake.values("topic")
        assert len(rows) == len(set(rows)) == count - 10
    write(dump, {0: log_of(range(700))})
    export(0, dump, lake, *by_date)
    assert lake.values("topic") == rows_of(dump)
    assert "committed" not in export(0, dump, lake, *by_date)


def test_files_have_the_statistics_of_times_and_lie_within_a_day(
    tmp_path: Path, lake: ExportedLake
) -> None:
    day = 24 * 3600 * 1000
    log = b"".join(batch_of(at, [(at // 2 * day + at, b"%d" % at, b"v")]) for at in range(6))
    write_partition(tmp_path / "in", {0: log, 6: batch_of(6, [(2**61, None, b"no day")])})
    export(0, tmp_path / "in", lake, "--by-date")
    assert len(lake.files("topic")) == 4
    for path in lake.files("topic"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = {group.column(at).path_in_schema: at for at in range(group.num_columns)}
        assert all(group.column(columns[name]).is_stats_set for name in ("key", "timestamp"))
    if isinstance(lake, DeltaTables):
        rows = pa.table(lake.table("topic").get_add_actions(flatten=True)).to_pylist()
        names = ("partition.date", "min.offset", "max.offset")
        bounds = {tuple(str(row[name]) for name in names) for row in rows}
        assert bounds == {
            ("1970-01-01", "0", "1"),
            ("1970-01-02", "2", "3"),
            ("1970-01-03", "4", "5"),
            ("None", "6", "6"),
        }
    else:
        scan = lake.table("topic").scan(row_filter="timestamp < '1970-01-02T00:00:00+00:00'")
        assert len(list(scan.plan_files())) == 1


def test_missing_catalog_ends_the_run_before_a_file_is_written(tmp_path: Path) -> None:
    write(tmp_path / "in", {0: log_of(range(20))})
    out = tmp_path / "out"
    where = ("--input", tmp_path / "in", "--output", out, "--format", "iceberg")
    for uri in ("http://127.0.0.1:1/catalog", f"sqlite:///{tmp_path}/none/catalog.db"):
        result = run_here("export", *where, "--catalog", uri, "--namespace", "kafka")
        assert result.returncode == 3, result.stderr
        assert uri in result.stderr
        assert not list(out.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--format", "iceberg", "--output", "out"), "requires --catalog and --namespace"),
        (("--format", "delta", "--output", "out", "--namespace", "n"), "require --format iceberg"),
        (("--format", "delta"), "--output is required"),
        (
            ("--output", "out", "--history", "latest"),
            "--history latest requires --format iceberg",
        ),
        (("--format", "iceberg", "--catalog", "none", "--namespace", "n"), "URI missing"),
        (("--format", "iceberg", "--catalog", "memory:", "--namespace", "n"), "memory:"),
    ],
)
def test_table_options_without_a_table_are_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in", {0: log_of(range(20))})
    result = run_here("export", "--input", tmp_path / "in", *options)
    assert (result.returncode, text in result.stderr) == (2, True), result.stderr


def test_catalog_by_name_has_a_default_output_in_its_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", {0: log_of(range(20))})
    properties = {"URI": f"sqlite:///{tmp_path}/own.db", "WAREHOUSE": f"file://{tmp_path}/lakes"}
    for name, value in {"TYPE": "sql", **properties}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__OWN__{name}", value)
    command = ("--catalog", "own", "--namespace", "raw.kafka")
    # The configuration of pyiceberg is read when it is imported.
    result = run_program(
        *COMMAND, "export", "--input", tmp_path / "in", "--format", "iceberg", *command
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (file,) = (tmp_path / "lakes").rglob("*.parquet")
    assert file.parent == tmp_path / "lakes" / "raw" / "kafka" / "topic" / "partition-0"


def test_table_that_is_ahead_of_its_output_is_rejected(tmp_path: Path, lake: ExportedLake) -> None:
    dump = tmp_path / "in"
    write(dump, {0: log_of(range(500))})
    export(0, dump, lake)
    folder = lake.output / "topic" / "partition-0"
    state = (folder / ".kafka-index-export.json").read_bytes()
    write(dump, {0: log_of(range(1000))})
    export(0, dump, lake)
    (folder / ".kafka-index-export.json").write_bytes(state)
    files = sorted(folder.iterdir())
    assert "up to offset 1000, but the export state ends at offset 500" in export(2, dump, lake)
    assert sorted(folder.iterdir()) == files


def test_table_with_rows_of_another_output_is_rejected(tmp_path: Path, lake: ExportedLake) -> None:
    dump = tmp_path / "in"
    write(dump, {0: log_of(range(500))})
    export(0, dump, lake)
    (lake.output / ".kafka-index-tables.json").unlink()
    assert "rows of topic-0 from another output" in export(2, dump, lake)
    # Another partition may come from another output.
    shutil.rmtree(dump)
    write_partition(dump, {0: log_of(range(20))}, "topic-1")
    export(0, dump, lake)
    assert len(lake.values("topic")) == 520


def test_table_with_other_columns_or_partitions_is_rejected_before_a_file_is_written(
    tmp_path: Path, lake: ExportedLake
) -> None:
    dump = tmp_path / "in"
    write(dump, {0: log_of(range(20))})
    lake.create("topic", pa.schema([("offset", pa.int64()), ("value", pa.string())]))
    text = export(2, dump, lake)
    assert "have different types for the column value (expected " in text
    assert "string, found binary)" in text
    lake.create("other", pa.schema([("offset", pa.int64())]))
    shutil.rmtree(dump)
    write_partition(dump, {0: log_of(range(20))}, "other-0")
    assert "partitioned by different columns" in export(2, dump, lake, "--by-date")
    assert not list(lake.output.rglob("0*.parquet"))
    # Columns that the table lacks are added.
    export(0, dump, lake, "--columns", "value")
    assert set(lake.read("other").column_names) == {"offset", "value", "topic", "partition"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("given", "history"),
    [("options", "full"), ("environment", "full"), ("options", "latest")],
)
def test_tables_in_a_bucket_equal_the_records(
    tmp_path: Path,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    given: str,
    history: str,
) -> None:
    catalog = ("--catalog", f"sqlite:///{tmp_path}/catalog.db", "--namespace", "kafka")
    options = [
        part for option in storage_options(s3, tmp_path) for part in ("--storage-option", option)
    ]
    with new_bucket(s3) as bucket:
        if given == "options":
            for name in s3.environment():
                monkeypatch.delenv(name)
        command = (
            *("export", "--input", tmp_path / "in", "--format", form, "--output", f"{bucket}/lake"),
            *(catalog if form == "iceberg" else ()),
            *(options if given == "options" else ()),
            *("--history", history),
        )
        for log in (log_of(range(500)), log_of(range(900))):
            write(tmp_path / "in", {0: log})
            run_until_done(*command)
        write(tmp_path / "in", MADE_ANEW)
        run_until_done(*command, "--on-data-loss", "restart")
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        if form == "iceberg":
            properties = {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1"}
            lake = load_catalog("default", uri=catalog[1], type="sql", **properties)
            rows = lake.load_table(("kafka", "topic")).scan().to_arrow()
        else:
            store = {"aws_endpoint": s3.endpoint, "allow_http": "true"}
            table = DeltaTable(f"{bucket}/lake/topic", storage_options=store)
            rows = pa.table(table.to_pyarrow_table())
    rows = rows.sort_by("offset")
    listing = list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))
    assert listing == rows_of(tmp_path / "in")


def run_until_done(*command: Argument) -> None:
    """Run a command until it exits with another code than 3.

    versitygw refuses some uploads of Arrow's client: "error when parsing the HTTP request".
    """
    for _ in range(10):
        result = run_here(str(command[0]), *command[1:])
        if result.returncode != 3:
            break
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("form", "library"), [("iceberg", "pyiceberg"), ("delta", "deltalake")])
def test_missing_library_is_named_with_its_extra(tmp_path: Path, form: str, library: str) -> None:
    program = (
        f"import sys; sys.modules[{library!r}] = None; from kafka_index.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    catalog = ("--catalog", "c", "--namespace", "n") if form == "iceberg" else ()
    command = ("export", "--input", DUMP, "--output", tmp_path / "out", "--format", form, *catalog)
    result = run_program(sys.executable, "-c", program, *command)
    assert result.returncode == 2
    assert f"pip install 'kafka-index[{form}]'" in result.stderr


def test_decoded_values_of_two_schema_versions_are_rows_of_one_table(
    tmp_path: Path, lake: ExportedLake
) -> None:
    values = [{"id": 1, "old": "o"}, {"id": 2, "status": "NEW", "currency": "EUR"}]
    names = ({"id", "old"}, {"id", "status", "currency"})
    written = [
        framed(2 + number, encode(_schema(own), [value])[0])
        for number, (own, value) in enumerate(zip(names, values, strict=True))
    ]
    schemas = [
        schema_record("topic-value", 1 + number, 2 + number, json.dumps(_schema(own)))
        for number, own in enumerate(names)
    ]
    dump = tmp_path / "in"
    for count in (1, 2):
        log = b"".join(batch_of(at, [(at, None, written[at])]) for at in range(count))
        write(dump, {0: log})
        write_topic(dump, "_schemas", schemas[:count])
        export(0, dump, lake, "--topics", "topic", "--decode", "value")
    result = [row["value"] for row in lake.rows("topic")]
    every = dict.fromkeys(("id", "old", "status", "currency"))
    assert result == [{**every, **value} for value in values]


def test_decoded_date_outside_the_calendar_sets_the_error_column_of_its_row(
    tmp_path: Path, lake: ExportedLake
) -> None:
    day = {"type": "int", "logicalType": "date"}
    schema = {"type": "record", "name": "Day", "fields": [{"name": "on", "type": day}]}
    plain = {**schema, "fields": [{"name": "on", "type": "int"}]}
    bodies = [
        framed(2, encode(plain, [{"on": number}])[0]) for number in (2**31 - 1, -(2**31), 2_932_896)
    ]
    dump = tmp_path / "in"
    log = b"".join(batch_of(at, [(at, None, body)]) for at, body in enumerate(bodies))
    write(dump, {0: log})
    write_topic(dump, "_schemas", [schema_record("topic-value", 1, 2, json.dumps(schema))])
    export(1, dump, lake, "--topics", "topic", "--decode", "value")
    result = [(row["value"], row["_decode_error"], row["value_raw"]) for row in lake.rows("topic")]
    assert result == [
        (None, "out_of_range", bodies[0]),
        (None, "out_of_range", bodies[1]),
        ({"on": dt.date(9999, 12, 31)}, None, None),
    ]


def _schema(names: set[str]) -> dict[str, object]:
    types = {"id": "int", "old": "string", "status": "string", "currency": "string"}
    fields = [{"name": name, "type": kind} for name, kind in types.items() if name in names]
    return {"type": "record", "name": "Order", "fields": fields}
