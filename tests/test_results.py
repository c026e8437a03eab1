"""Results of the functions of the package: what they print, and what reads them as tables."""

from __future__ import annotations

import inspect
import os
import shutil
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import click
import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

import kafka_index
from kafka_index import KafkaIndexError, LogConfig, Result
from kafka_index.cli.app import load_command
from kafka_index.commands.find.request import FindRequest
from kafka_index.commands.metadata.request import MetadataRequest, PartitionsRequest
from kafka_index.commands.stats.request import StatsRequest
from kafka_index.core.errors import DamageError
from kafka_index.core.job.request import Request, parameters
from kafka_index.records import ReadRequest
from tests.support.command_line import DUMP, SETTINGS

#: A screen of a terminal.
MAX_LINES, MAX_WIDTH = 24, 130

QUERIES = [{"topic": "payments", "partition": 0, "offset": 3}]
TIMES = [{"topic": "payments", "partition": 0, "timestamp": date(2020, 1, 1)}]
Call = Callable[..., Result]
# A call over a dump, with a folder of its own; keywords are added.
CALLS: dict[str, Call] = {
    "verify": lambda dump, _, **given: kafka_index.verify(dump, **given),
    "build": lambda dump, folder, **given: kafka_index.build_indexes(dump, folder / "out", **given),
    "lookup offsets": lambda dump, _, **given: kafka_index.lookup_offsets(dump, QUERIES, **given),
    "lookup timestamps": lambda dump, _, **given: kafka_index.lookup_timestamps(
        dump, TIMES, **given
    ),
    "restore": lambda dump, folder, **given: kafka_index.restore_dump(
        dump, folder / "restored", new_topic_ids=True, **given
    ),
    "export": lambda dump, folder, **given: kafka_index.export_records(
        dump, folder / "lake", **given
    ),
    "find": lambda dump, _, **given: kafka_index.find_records(
        dump, value_contains="", topics="payments", **given
    ),
    "list": lambda dump, _, **given: kafka_index.list_partitions(dump, **given),
    "metadata": lambda _, __, **given: kafka_index.read_metadata(DUMP, **given),
    "predict": lambda dump, _, **given: kafka_index.predict(dump, **given),
    "import": lambda dump, folder, **given: kafka_index.import_records(
        kafka_index.export_records(dump, folder / "lake").output, folder / "logs", **given
    ),
    "stats": lambda dump, _, **given: kafka_index.read_stats(dump, by="partition", **given),
    "rewrite": lambda dump, folder, **given: kafka_index.rewrite_dump(
        dump, folder / "clean", drop_where="offset < 5", **given
    ),
}


KEPT = ("payments-0", "app-logs-0")


def copy_dump(target: Path) -> Path:
    """Copy two partitions of the example dump, with the files at its root."""
    others = [path.name for path in DUMP.iterdir() if path.is_dir() and path.name not in KEPT]
    return Path(shutil.copytree(DUMP, target, ignore=shutil.ignore_patterns(*others)))


@pytest.fixture(scope="module")
def intact_dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_dump(tmp_path_factory.mktemp("intact_dump") / "dump")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump with indexes and a log that are damaged."""
    root = copy_dump(tmp_path_factory.mktemp("damaged") / "dump")
    for path in sorted(root.glob("*/*.index")):
        path.write_bytes(b"\x01" * 16)
    log = min(root.glob("payments-0/*.log"))
    content = bytearray(log.read_bytes())
    content[200] ^= 0xFF
    log.write_bytes(content)
    return root


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_result_repr_fits_on_a_screen(
    name: str, intact_dump: Path, damaged: Path, tmp_path: Path, *, is_damaged: bool
) -> None:
    result = CALLS[name](damaged if is_damaged else intact_dump, tmp_path)
    lines = repr(result).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= MAX_WIDTH
    assert lines[0]
    assert f"{type(result).__name__}: {result.headline}".startswith(lines[0])
    page = result._repr_html_()
    assert page.index(result.command) < page.index("<table>")
    assert len(page) < 100_000


@pytest.mark.parametrize("name", CALLS)
def test_result_implements_the_arrow_stream_interface(
    name: str, intact_dump: Path, tmp_path: Path
) -> None:
    result = CALLS[name](intact_dump, tmp_path)
    table = result.to_arrow()
    assert table.num_rows
    assert pa.table(result) == table
    assert pl.DataFrame(result).height == table.num_rows
    assert result.to_pandas().shape == (table.num_rows, table.num_columns)
    rows = duckdb.execute("SELECT count(*) FROM result").fetchall()
    assert rows == [(table.num_rows,)]


def test_answers_are_the_first_columns_of_a_lookup_that_prints(intact_dump: Path) -> None:
    queries = [{"topic": "payments", "partition": 0, "timestamp": date(2020, 1, 1)}]
    header = repr(kafka_index.lookup_timestamps(intact_dump, queries)).splitlines()[2]
    assert header.split()[:3] == ["status", "found_offset", "found_timestamp_ms"]


def test_integers_with_nulls_stay_integers_in_pandas(intact_dump: Path) -> None:
    queries = [{"topic": "payments", "partition": 0, "offset": offset} for offset in (3, 10**9)]
    frame = kafka_index.lookup_offsets(intact_dump, queries).to_pandas()
    assert str(frame["batch_base_offset"].dtype) == "Int64"
    assert frame["batch_base_offset"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "name", [call for call in CALLS if call not in ("import", "metadata", "predict")]
)
def test_result_without_an_entry_of_the_input_is_not_ok(name: str, tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump")
    missing = dump / "payments-7"
    missing.symlink_to(tmp_path / "gone")
    result = CALLS[name](dump, tmp_path)
    assert result.to_arrow().num_rows
    assert result.unread == (f"{missing} -> {tmp_path / 'gone'}: a broken link",)
    with pytest.raises(DamageError, match=r"1 entry not read, such as .*payments-7"):
        result.raise_for_damage()
    missing.unlink()
    again = CALLS[name](dump, tmp_path / "again")
    assert again.to_arrow().num_rows
    assert (again.ok, again.unread) == (True, ())


def test_metadata_without_a_partition_of_the_input_is_not_ok(tmp_path: Path) -> None:
    dump = Path(shutil.copytree(DUMP, tmp_path / "dump"))
    (dump / "__consumer_offsets-7").symlink_to(tmp_path / "gone")
    metadata = kafka_index.read_metadata(dump, "groups")
    assert not metadata.ok
    assert "__consumer_offsets-7" in metadata.unread[0]


@pytest.mark.parametrize("name", CALLS)
def test_result_has_no_truth_value(name: str, intact_dump: Path, tmp_path: Path) -> None:
    result = CALLS[name](intact_dump, tmp_path)
    with pytest.raises(TypeError, match=r"neither true nor false; use \w+.ok"):
        bool(result)


def test_cell_of_html_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<b>" / "payments-0"
    shutil.copytree(DUMP / "payments-0", folder)
    assert "<b>" not in kafka_index.verify(folder)._repr_html_()


def test_verify_outcome_equals_that_of_the_command(damaged: Path) -> None:
    whole, harmful = kafka_index.verify(DUMP, config=SETTINGS), kafka_index.verify(damaged)
    assert (whole.ok, whole.summary["exit_code"]) == (True, 0)
    assert (harmful.ok, harmful.summary["exit_code"]) == (False, 1)
    whole.raise_for_damage()
    with pytest.raises(DamageError, match="harmful files in"):
        harmful.raise_for_damage()


@pytest.mark.parametrize(
    "config",
    [SETTINGS, str(SETTINGS), LogConfig.load(SETTINGS), {"log.index.interval.bytes": 512}],
    ids=["path", "text", "settings", "mapping"],
)
def test_config_argument_accepts_a_path_mapping_or_settings(config: Any) -> None:
    result = kafka_index.verify(DUMP, topics="payments", config=config)
    assert result.ok
    rows = result.to_arrow().to_pylist()
    written = [row["class"] for row in rows if row["kind"] == "index"]
    assert written
    assert ("identical" in written) is (config != {"log.index.interval.bytes": 512})


@pytest.mark.parametrize("topics", ["payments|app-logs", ["payments", "app-logs"]])
def test_topics_argument_accepts_a_pattern_or_names(topics: Any) -> None:
    result = kafka_index.verify(DUMP, topics=topics).partitions
    assert {one.topic for one in result} == {"payments", "app-logs"}


def test_topic_name_in_a_list_is_not_a_regular_expression() -> None:
    with pytest.raises(KafkaIndexError, match=r"audit\\?\.?"):
        kafka_index.verify(DUMP, topics=["audit.trai."])


@pytest.mark.parametrize(
    "now", [datetime(2030, 1, 1, tzinfo=UTC), date(2030, 1, 1), "2030-01-01", 1_893_456_000_000]
)
def test_time_arguments_are_equal_in_every_type(now: Any) -> None:
    result = kafka_index.verify(DUMP, topics="payments", now=now)
    expected = kafka_index.verify(DUMP, topics="payments", now="ms:1893456000000")
    assert result.to_arrow() == expected.to_arrow()


def test_read_records_accepts_a_folder_of_remote_segments(tmp_path: Path) -> None:
    empty = str(tmp_path)
    for tiered in (empty, [tmp_path], kafka_index.TieredOptions((empty,))):
        with pytest.raises(kafka_index.KafkaIndexError, match="contains no remote segments"):
            kafka_index.read_records(DUMP, tiered=tiered)
    with pytest.raises(kafka_index.KafkaIndexError, match="tiered is not a path"):
        kafka_index.read_records(DUMP, tiered=5)  # type: ignore[arg-type]
    with pytest.raises(kafka_index.KafkaIndexError, match="not a tuple of str"):
        kafka_index.TieredOptions(empty)  # type: ignore[arg-type]


def test_read_records_reports_every_entry_named_like_a_log(tmp_path: Path) -> None:
    dump = shutil.copytree(DUMP / "payments-0", tmp_path / "payments-0")
    expected = kafka_index.read_records(dump).read_all()
    os.mkfifo(dump / "00000000000000009999.log")
    with pytest.raises(kafka_index.KafkaIndexError, match=r"9999\.log"):
        kafka_index.read_records(dump)
    assert kafka_index.read_records(dump, on_damage="drop").read_all() == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": []},
        {"config": {1: "2"}},
        {"config": {"log.index.interval.bytes": "many"}},
        {"config": {"log.index.interval.bytes": [1]}},
        {"config": "no/such/file.properties"},
        {"threads": 0},
        {"now": datetime(2030, 1, 1)},  # noqa: DTZ001, without a zone on purpose
        {"now": "soon"},
        {"against": DUMP, "fast": True},
    ],
    ids=str,
)
def test_invalid_argument_value_of_valid_type_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(KafkaIndexError):
        kafka_index.verify(DUMP, **wrong)


@pytest.mark.parametrize(
    "queries",
    [
        pa.Table.from_pylist(QUERIES),
        pa.RecordBatch.from_pylist(QUERIES),
        pa.Table.from_pylist(QUERIES).to_reader(),
        pl.DataFrame(QUERIES),
        pd.DataFrame(QUERIES),
        duckdb.sql("SELECT 'payments' AS topic, 0 AS partition, 3 AS \"offset\""),
        QUERIES,
    ],
    ids=["table", "batch", "reader", "polars", "pandas", "duckdb", "dicts"],
)
def test_queries_are_accepted_from_arrow_and_rows(queries: Any, intact_dump: Path) -> None:
    result = kafka_index.lookup_offsets(intact_dump, queries).to_arrow()
    assert result["status"].to_pylist() == ["found"]
    assert result["offset"].to_pylist() == [3]


TIMES_ASKED = [
    datetime(2026, 11, 21, 7, 25, 19, tzinfo=UTC),
    "2026-11-21T07:25:19Z",
    "2026-11-21T08:25:19+01:00",
    "1795245919000",
    1_795_245_919_000,
]


@pytest.mark.parametrize("time", TIMES_ASKED, ids=repr)
@pytest.mark.parametrize("frame", [list, pl.DataFrame, pd.DataFrame], ids=str)
def test_query_times_are_accepted_in_every_type(
    time: Any, frame: Callable[[Any], Any], intact_dump: Path
) -> None:
    queries = [{"topic": "payments", "partition": 0, "timestamp": time}] * 2
    result = kafka_index.lookup_timestamps(intact_dump, frame(queries)).to_arrow()
    assert result["found_offset"].to_pylist() == [942, 942]


def test_query_times_accept_relative_and_null_but_not_invalid_values(intact_dump: Path) -> None:
    def statuses(*times: str | None) -> list[str]:
        queries = [{"topic": "payments", "partition": 0, "timestamp": time} for time in times]
        result = (
            kafka_index.lookup_timestamps(intact_dump, queries).to_arrow()["status"].to_pylist()
        )
        return list(result)

    assert statuses("2020-01-01", None, "-90000d") == ["found", "invalid_query", "invalid_query"]
    with pytest.raises(KafkaIndexError, match="queries: timestamp: 'soon' is neither"):
        statuses("now", "soon")


def test_list_without_queries_has_no_answers(intact_dump: Path) -> None:
    assert kafka_index.lookup_offsets(intact_dump, []).to_arrow().num_rows == 0


@pytest.mark.parametrize(
    "queries", [[{"topic": "payments"}], [{"topic": 1, "partition": 0, "offset": 0}]], ids=str
)
def test_invalid_table_of_queries_is_rejected(queries: Any, intact_dump: Path) -> None:
    with pytest.raises(KafkaIndexError):
        kafka_index.lookup_offsets(intact_dump, queries)


def _types(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _types(part)


def _hints(name: str) -> Iterator[Any]:
    value = getattr(kafka_index, name)
    if inspect.isroutine(value) or (issubclass(value, Result) and value is not Result):
        # Results are imported by the first call of a function, for type checkers before.
        known = {each: getattr(kafka_index, each) for each in dir(kafka_index) if each[0] != "_"}
        yield from typing.get_type_hints(value, localns=known).values()


def test_every_type_in_a_public_signature_is_public() -> None:
    public = [name for name in dir(kafka_index) if not name.startswith("_")]
    known = {getattr(kafka_index, name) for name in public}
    private = {
        f"{name}: {kind.__module__}.{kind.__name__}"
        for name in public
        for hint in _hints(name)
        for kind in _types(hint)
        if kind.__module__.startswith("kafka_index") and kind not in known
    }
    assert private == set()


@pytest.mark.parametrize(
    ("function", "request_kind"),
    [
        (kafka_index.read_records, ReadRequest),
        (kafka_index.list_partitions, PartitionsRequest),
        (kafka_index.find_records, FindRequest),
        (kafka_index.read_metadata, MetadataRequest),
        (kafka_index.read_stats, StatsRequest),
    ],
)
def test_arguments_of_a_function_are_the_fields_of_its_request(
    function: Callable[..., Result], request_kind: type[Request]
) -> None:
    arguments = set(inspect.signature(function).parameters) - {"paths", "threads"}
    assert arguments == set(parameters(request_kind)) - {"inputs"}


#: The command that does the same as a function.
COMMAND_OF = {
    "backup_broker": "backup",
    "build_indexes": "build",
    "export_records": "export",
    "find_records": "find",
    "import_records": "import",
    "lookup_offsets": "lookup",
    "lookup_timestamps": "lookup",
    "predict": "predict",
    "read_metadata": "metadata",
    "read_stats": "stats",
    "restore_dump": "restore",
    "rewrite_dump": "rewrite",
    "verify": "verify",
}
#: Options under another name: words of Python, negations, and in the plural what is repeated.
KEYWORD_OF = {
    "input": "paths",
    "logs": "paths",
    "no_verify_crc": "verify_crc",
    "from": "from_time",
    "to": "to_time",
    "log_start": "log_starts",
    "seed": "seeds",
    "topic_config": "topic_configs",
    "rename": "renames",
    "property": "properties",
    "layout_property": "layout_properties",
    # Members of one argument.
    "index_interval_bytes": "config",
    "index_size_max_bytes": "config",
    **dict.fromkeys(("tiered_format", "key_prefix", "tiered_key", "topic_id"), "tiered"),
}
#: Of one command alone: there the ids are of topics to write.
KEYWORD_OF_COMMAND = {"backup": {"node": "node_id"}, "import": {"topic_id": "topic_ids"}}
#: Options of the command line alone: what runs the work, what is printed, files of reports.
OF_COMMANDS = frozenset(
    {"engine", "master", "quiet", "verbose", "wide", "json", "summary", "report", "report_rows"}
    | {"storage_option", "help", "fail_if_none", "values"}
)
#: Of one command alone: repeated backups, dry runs of a build, files of answers, single queries.
OF_COMMAND = {
    "backup": {"every", "metrics", "health"},
    "build": {"dry_run"},
    "lookup": {"queries", "output", "by", "topics", "starting_offsets", "reset_offsets", "threads"}
    | {"fail_on", "overwrite", "topic", "partition", "offset", "timestamp", "show_record"}
    | {"get_offsets", "output_format"},
    "metadata": {"output"},
}
#: Keywords that no option has.
OF_FUNCTIONS = {"lookup_offsets": {"queries"}, "lookup_timestamps": {"queries"}}


@pytest.mark.parametrize("name", COMMAND_OF)
def test_function_has_the_keywords_of_the_options(name: str) -> None:
    command = COMMAND_OF[name]
    options = {
        max(parameter.opts, key=len).lstrip("-").replace("-", "_")
        for parameter in load_command(command, as_job=False).params
        if isinstance(parameter, click.Option)
    }
    options -= OF_COMMANDS | OF_COMMAND.get(command, set())
    renamed = {**KEYWORD_OF, **KEYWORD_OF_COMMAND.get(command, {})}
    expected = {renamed.get(option, option) for option in options}
    keywords = set(inspect.signature(getattr(kafka_index, name)).parameters)
    assert keywords - {"paths"} - OF_FUNCTIONS.get(name, set()) == expected - {"paths"}
