"""Messages for users: they give the cause and the next step, and do not mislead."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from pathlib import Path

import click
import pytest

from kafka_index.cli.app import main
from kafka_index.cli.record_text import PartitionedRecordText
from kafka_index.commands.backup.request import BACKUP
from kafka_index.commands.build.request import BUILD
from kafka_index.commands.cat.request import CAT
from kafka_index.commands.dump.request import DUMP as DUMP_SPEC
from kafka_index.commands.export.request import EXPORT
from kafka_index.commands.find.request import FIND
from kafka_index.commands.import_.request import IMPORT
from kafka_index.commands.lookup.request import LOOKUP
from kafka_index.commands.metadata.request import METADATA
from kafka_index.commands.predict.request import PREDICT
from kafka_index.commands.restore.request import RESTORE
from kafka_index.commands.rewrite.request import REWRITE
from kafka_index.commands.verify.request import VERIFY
from kafka_index.core.errors import ConfigError, InputError
from kafka_index.core.format.messages import GROUP_RECORDS
from kafka_index.core.format.times import format_time, is_relative, parse_time
from kafka_index.core.job.request import ArgumentError, CommandSpec, parameters
from kafka_index.core.query.printed_records import Row
from tests.cli.test_app import COMMAND_LINES
from tests.support.command_line import DUMP, run_here
from tests.support.dumps import write_logs
from tests.support.metadata import coordinator_record, log_batch, write_log
from tests.support.record_tables import write_partition
from tests.support.restoring import copy_dump
from tests.support.segments import batch, marker

#: The requests of commands, and texts that few options take.
SPECS = [
    BACKUP,
    BUILD,
    CAT,
    DUMP_SPEC,
    EXPORT,
    FIND,
    IMPORT,
    LOOKUP,
    METADATA,
    PREDICT,
    RESTORE,
    REWRITE,
    VERIFY,
]
ODD_TEXTS = ("", "(", "hex:zz", "base64:!", "x =")
PATH_METAVARS = ("PATH", "PATH...", "FILE", "DIR", "DIR...", "URI")
OPTIONS = [(spec, field) for spec in SPECS for field in parameters(spec.request)]


@pytest.mark.parametrize(
    ("spec", "field"), OPTIONS, ids=[f"{spec.name}-{field}" for spec, field in OPTIONS]
)
def test_error_about_value_names_its_option_or_its_file(spec: CommandSpec, field: str) -> None:
    kind = parameters(spec.request)[field].kind
    for text in ODD_TEXTS:
        value = (text,) if kind.is_multiple else text
        message, path = "", None
        try:
            spec.request.build({field: value}, name_of=lambda name: f"--option-{name}")
        except ArgumentError:
            continue  # the value is right
        except (ConfigError, InputError) as error:
            message, path = str(error), error.path
        assert not message or path or message.startswith(f"--option-{field}"), message


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_error_about_empty_path_names_its_option(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMAND_LINES[words]
    arguments = [
        "given" for param in command.params if isinstance(param, click.Argument) and param.metavar
    ]
    for option in command.params:
        if isinstance(option, click.Option) and option.metavar in PATH_METAVARS:
            assert main([*words, *arguments, option.opts[0], ""]) == 2
            message = capsys.readouterr().err
            assert any(name in message for name in option.opts), message


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def test_backup_without_metadata_log_warns_of_missing_topics(tmp_path: Path) -> None:
    data = copy_dump(tmp_path / "data", "payments-0")
    without = run_here("backup", "--input", data, "--output", tmp_path / "repository")
    assert without.returncode == 0
    assert "no input contains the metadata log (__cluster_metadata-0)" in without.stdout
    assert "metadata.log.dir" in without.stdout
    shutil.copytree(DUMP / "__cluster_metadata-0", data / "__cluster_metadata-0")
    complete_result = run_here("backup", "--input", data, "--output", tmp_path / "repository")
    assert complete_result.returncode == 0
    assert "metadata log" not in complete_result.stdout


# -------------------------------------------------------------------- nested and foreign inputs


def place(root: Path, below: str, *names: str) -> Path:
    """Copy partitions of the example, with its identity, into a directory below a root."""
    (root / below).mkdir(parents=True)
    identity = (DUMP / "meta.properties").read_text().splitlines()
    own = [each for each in identity if not each.startswith("directory.id")]
    own.append(f"directory.id={hashlib.sha256(below.encode()).hexdigest()[:22]}")
    (root / below / "meta.properties").write_text("\n".join(own) + "\n")
    for name in names:
        shutil.copytree(DUMP / name, root / below / name)
    return root / below


@pytest.mark.parametrize(
    "command", [("verify",), ("cat", "payments"), ("restore",), ("export",), ("metadata",)]
)
def test_parent_of_data_directories_lists_the_data_directories(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    nested = {
        place(tmp_path, "dump/data", "payments-0"),
        place(tmp_path, "dump/meta", "__cluster_metadata-0"),
        place(tmp_path, "dump/broker-1/data", "payments-1"),
    }
    more = ("--output", tmp_path / "out") if command[0] in ("restore", "export") else ()
    result = run_here(*command, "--input", tmp_path / "dump", *more)
    assert result.returncode == 2
    _, _, paths = on_one_line(result.stderr).partition("the path contains data directories: give ")
    assert set(map(Path, paths.split(", "))) == nested
    inputs = [each for path in nested for each in ("--input", path)]
    assert run_here(*command, *inputs, *more).returncode == 0


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("kafka/orders/0_23/0-1-v1.log", "is a Redpanda segment: this format is not supported"),
        ("dump.tar.gz", "is an archive: unpack it"),
        ("topics/t/partition=0/t+0+0000000000.avro", "is not a Kafka log; kafka-index import"),
        ("kafka-index-backup.json", "is a repository of backups: give backup:"),
    ],
)
def test_inputs_of_other_formats_are_identified(tmp_path: Path, file: str, expected: str) -> None:
    path = tmp_path / "dump" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    result = run_here("verify", "--input", tmp_path / "dump")
    assert result.returncode == 2
    assert expected in on_one_line(result.stderr)


def test_archive_as_input_is_reported_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "dump.tar"
    path.write_bytes(b"x")
    result = run_here("verify", "--input", path)
    assert result.returncode == 2
    assert f"{path} is an archive: unpack it" in on_one_line(result.stderr)


# ------------------------------------------------------------------------------- no metadata log


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ((), "also give the directory of the metadata log"),
        (("--what", "topics"), "also give the directory of the metadata log"),
        (("--what", "groups"), "also give the directory that contains __consumer_offsets"),
    ],
)
def test_metadata_of_an_input_without_internal_topics_suggests_their_directory(
    tmp_path: Path, what: tuple[str, ...], expected: str
) -> None:
    result = run_here("metadata", place(tmp_path, "data", "payments-0"), *what)
    assert result.returncode == 2
    assert expected in on_one_line(result.stderr)
    assert "no topic matches" not in result.stderr


# --------------------------------------------------------------- stray and deleted directories


@pytest.mark.parametrize("mark", ["stray", "delete"])
def test_stray_or_deleted_directory_is_read_if_given_as_input(tmp_path: Path, mark: str) -> None:
    data = place(tmp_path, "data", "payments-1")
    marked = data / f"payments-0.{'a' * 32}-{mark}"
    shutil.copytree(DUMP / "payments-0", marked)
    complete_result = run_here(
        "cat", "payments", "--input", DUMP / "payments-0", "--format", "json"
    )
    named = run_here("cat", "payments", "--input", marked, "--format", "json")
    assert (named.returncode, named.stdout) == (0, complete_result.stdout)
    restored = run_here("restore", "--input", marked, "--output", tmp_path / "out")
    assert restored.returncode == 0, restored.stderr
    assert (tmp_path / "out" / "payments-0").is_dir()
    # In a data directory, or met by a glob, it is skipped as before.
    for given in (data, f"{data}/*"):
        result = run_here("cat", "payments", "--input", given, "--format", "json").stdout
        assert '"partition": 0' not in result


# ------------------------------------------------------------------- lag of control records


def test_lag_of_only_control_records_is_marked(tmp_path: Path) -> None:
    records = batch(0, 4, producer_id=7, producer_epoch=0, transactional=True)
    folder = write_partition(tmp_path, {0: records + marker(4, 7, 0, commit=True)})
    topic, _, number = folder.name.rpartition("-")
    commits = [
        coordinator_record(
            GROUP_RECORDS,
            "OffsetCommit",
            {"group": group, "topic": topic, "partition": int(number)},
            {"offset": offset, "leaderEpoch": 0, "metadata": "", "commitTimestamp": 1000},
            3,
        )
        for group, offset in (("behind", 3), ("done", 4))
    ]
    write_log(tmp_path / "__consumer_offsets-0", log_batch(0, *commits))
    result = run_here("metadata", tmp_path, "--what", "lag", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    actual = {row["group"]: (row["lag_records"], row["reason"]) for row in rows}
    assert actual["behind"] == (2, None)
    assert actual["done"][0] == 1
    assert "only control records, such as transaction markers, follow" in actual["done"][1]


# ---------------------------------------------------------------------- the same options everywhere


def test_metadata_accepts_the_input_option() -> None:
    given = run_here("metadata", DUMP, "--what", "topics", "--json")
    named = run_here("metadata", "--input", DUMP, "--what", "topics", "--json")
    assert (named.returncode, named.stdout) == (0, given.stdout)
    assert run_here("metadata", "--what", "topics").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("metadata", DUMP),
        ("metadata", DUMP, "--what", "topics"),
        ("dump", DUMP / "payments-0"),
        ("warm-up",),
    ],
)
def test_quiet_prints_nothing_for_an_intact_input(arguments: tuple[str | Path, ...]) -> None:
    result = run_here(str(arguments[0]), *arguments[1:], "-q")
    assert (result.returncode, result.stdout) == (0, "")


def test_every_command_has_quiet() -> None:
    lacking = {
        words
        for words, command in COMMAND_LINES.items()
        if not any("--quiet" in parameter.opts for parameter in command.params)
    }
    assert lacking == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yesterday 10:00", "2026-11-19T10:00:00.000Z"),
        ("today 07:30:15.5", "2026-11-20T07:30:15.500Z"),
        ("Today 01:00+02:00", "2026-11-19T23:00:00.000Z"),
    ],
)
def test_time_of_yesterday_or_today_is_accepted(text: str, expected: str) -> None:
    now = parse_time("2026-11-20T12:34:56Z")
    assert format_time(parse_time(text, now=now)) == expected
    assert is_relative(text)


@pytest.mark.parametrize("text", ["yesterday 25:00", "now 10:00", "yesterday x"])
def test_invalid_time_after_yesterday_or_now_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="neither milliseconds nor a time"):
        parse_time(text)


# ------------------------------------------------------------------- binary values on a terminal


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_binary_value_is_shortened_on_a_terminal_only(
    is_terminal: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Row(
        position_bytes=0,
        offset=7,
        timestamp_ms=0,
        producer_id=-1,
        producer_epoch=-1,
        sequence=-1,
        key=memoryview(b"text" * 100),
        value=memoryview(b"\xff" * 1000),
        headers=(),
        is_control=False,
    )
    monkeypatch.setattr(sys, "stdout", Terminal() if is_terminal else io.StringIO())
    text = "".join(PartitionedRecordText(as_json=False, values="text")._value_cells(row))
    assert "text" * 100 in text
    assert (f"0x{'ff' * 24}... (1,000 bytes)" in text) is is_terminal
    assert ("ff" * 1000 in text) is not is_terminal
    whole = "".join(PartitionedRecordText(as_json=False, values="hex")._value_cells(row))
    assert "ff" * 1000 in whole


# ------------------------------------------------------------------------------ the runbook's paths


@pytest.mark.parametrize("is_separate", [True, False])
def test_runbook_of_the_same_cluster_names_its_metadata_directory(
    tmp_path: Path,
    is_separate: bool,  # noqa: FBT001
) -> None:
    output = tmp_path / "out"
    inputs: list[str | Path]
    inputs, metadata = ["--input", DUMP], output
    if is_separate:
        data = place(tmp_path, "dump/data", "payments-0", "payments-1")
        shutil.copy(DUMP / "meta.properties", data)
        log = place(tmp_path, "dump/meta", "__cluster_metadata-0")
        inputs, metadata = ["--input", data, "--input", log], tmp_path / "metadata"
        inputs += ["--metadata-output", metadata]
    result = run_here("restore", *inputs, "--output", output, "--cluster", "same")
    assert result.returncode in (0, 1), result.stderr
    assert f"Set metadata.log.dir={metadata}, which has the metadata log" in result.stdout
    command = f"kafka-index predict --input {output} --metadata {metadata}"
    assert command in on_one_line(result.stdout)
    assert "METADATA_DIR" not in result.stdout
    assert run_here(*command.split()[1:]).returncode in (0, 1)


# ----------------------------------------------------------------------------- causes come first


def test_until_before_all_records_reports_formatted_times(tmp_path: Path) -> None:
    late = batch(0, 1, timestamps=[2**63 - 1])
    write_logs(
        tmp_path / "dump", {("t", 0, 0): [late], ("u", 0, 0): [batch(0, 1, timestamps=[10**12])]}
    )
    result = run_here(
        *("restore", "--input", tmp_path / "dump", "--output", tmp_path / "out"),
        *("--until", "1970-01-02", "--create-time", "--new-topic-ids"),
    )
    assert result.returncode == 2
    assert "a time after the year 9999" in on_one_line(result.stderr)
    assert str(2**63 - 1) not in result.stderr


def test_unquoted_word_in_a_condition_is_reported_first(tmp_path: Path) -> None:
    result = run_here(
        *("rewrite", "--input", DUMP / "payments-0", "--output", tmp_path / "out"),
        *("--drop-where", "timestamp < now"),
    )
    assert result.returncode == 2
    text = on_one_line(result.stderr)
    assert "the condition is invalid: 'now' is not supported" in text
    assert "in single quotes" in text
    assert "BETWEEN" not in text


def test_import_of_kcat_records_suggests_layout_kcat(tmp_path: Path) -> None:
    kcat = DUMP.parent / "kcat.json"
    result = run_here("import", "--input", kcat, "--output", tmp_path / "out")
    assert result.returncode == 2
    assert "use --layout kcat" in on_one_line(result.stderr)
    named = run_here("import", "--input", kcat, "--output", tmp_path / "out", "--layout", "kcat")
    assert named.returncode == 0, named.stderr


def test_export_of_a_log_that_ends_at_the_largest_offset_is_damage(tmp_path: Path) -> None:
    base_offset = 2**63 - 3
    write_logs(tmp_path / "dump", {("t", 0, base_offset): [batch(base_offset, 3)]})
    result = run_here("export", "--input", tmp_path / "dump", "--output", tmp_path / "out")
    assert result.returncode == 1
    text = on_one_line(result.stdout + result.stderr)
    assert f"the last offset of the log is {2**63 - 1}" in text
    assert "the log has no new offsets" not in text
