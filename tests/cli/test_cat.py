"""``cat``: which records of a topic, in which order, and how they are printed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index.core.errors import CorruptLogError
from tests.support.child_processes import enforce_permissions
from tests.support.command_line import COMMAND, DUMP, Argument, environment, run_here
from tests.support.metadata import cluster_record, log_batch, write_log
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import write_topic
from tests.support.segments import batch, record
from tests.support.terminals import run_on_a_terminal
from tests.support.tiered import setting
from tests.support.timeouts import TIMEOUT_SECONDS
from tests.support.transactional_logs import segments
from tests.support.typed_dump import framed, topics, write_typed_dump

TEMPLATE = r"%t %p %o %T %k|%K|%s|%S|%h\n"
ISOLATIONS = ("read_uncommitted", "read_committed")
#: Of which damage: none, a wrong checksum in the middle, a torn end.
DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "sound": lambda log: log,
    "checksum": lambda log: log[:300] + bytes([log[300] ^ 1]) + log[301:],
    "end": lambda log: log[:-7] + b"\7" * 50,
}
Row = dict[str, Any]


def cat(code: int, *arguments: Argument) -> str:
    result = run_here("cat", *arguments)
    assert result.returncode == code, (result.stdout, result.stderr)
    return result.stdout


def rows(text: str) -> list[Row]:
    return [json.loads(line) for line in text.splitlines()]


def places(text: str) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows(text)]


@pytest.fixture(scope="module", params=DAMAGES)
def dump(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of three partitions: with transactions, odd records, and missing offsets."""
    root: Path = tmp_path_factory.mktemp(request.param)
    damage = DAMAGES[request.param]
    logs = segments(3)
    last = max(logs)
    write_partition(root, {**logs, last: damage(logs[last])}, "topic-0", indexed=True)
    odd = b"".join(
        (
            record(0, 0, b"key", b"value", ((b"a", b"1"), (b"b", None), (b"c", b""))),
            record(1, -5, None, None),
            record(2, 7, b"", b""),
            record(3, 9, b"\xff\x00", b"\x1b[31m\n", ((b"\xc3\xa4", b"\xff"),)),
        )
    )
    start = 1_700_000_000_000
    entry = batch(
        5,
        payload=odd,
        record_count=4,
        last_offset_delta=3,
        base_timestamp=start,
        max_timestamp=start + 9,
    )
    many = [batch_of(at, [(start + at - at % 7, b"k", b"v%d" % at)]) for at in range(20, 60)]
    write_partition(root, {0: damage(entry + b"".join(many))}, "topic-1")
    gaps = [batch_of(at, [(start + at, b"%d" % at, b"v")] * 2) for at in range(0, 6000, 300)]
    write_partition(root, {0: b"".join(gaps)}, "topic-2")
    write_partition(root, {0: batch_of(0, [(0, b"k", b"v")])}, "topics-0")
    return root


def expected(dump: Path, isolation: str = "read_uncommitted", **given: Any) -> list[Row]:
    """The records that are sound, as `read_records` returns them."""
    records = kafka_index.read_records(
        dump, topics="topic", isolation=isolation, on_damage="drop", **given
    )
    table = records.read_all()
    times = table["timestamp"].cast("int64").to_pylist()
    return [{**row, "timestamp": time} for row, time in zip(table.to_pylist(), times, strict=True)]


def is_intact(dump: Path) -> bool:
    return dump.name.startswith("sound")


def templated(row: Row) -> bytes:
    """A record by `TEMPLATE`, plainly."""

    def length(data: bytes | None) -> int:
        return -1 if data is None else len(data)

    key, value = row["key"], row["value"]
    headers = b",".join(
        each["key"].encode() + b"=" + (b"NULL" if each["value"] is None else each["value"])
        for each in row["headers"] or ()
    )
    numbers = f"{row['topic']} {row['partition']} {row['offset']} {row['timestamp']} ".encode()
    return b"%s%s|%d|%s|%d|%s\n" % (
        numbers,
        key or b"",
        length(key),
        value or b"",
        length(value),
        headers,
    )


RANGES: Mapping[str, tuple[tuple[Argument, ...], Callable[[Row], bool]]] = {
    "all": ((), lambda _: True),
    "offsets": (("-o", "20..31"), lambda row: 20 <= row["offset"] < 31),
    "from an offset": (("-o", "30.."), lambda row: row["offset"] >= 30),
    "to an offset": (("-o", "..30"), lambda row: row["offset"] < 30),
    "an offset alone": (("-o", "30"), lambda row: row["offset"] >= 30),
    "times": (
        ("--from", 1_700_000_000_021, "--to", 1_700_000_000_042),
        lambda row: 1_700_000_000_021 <= row["timestamp"] < 1_700_000_000_042,
    ),
    "both": (
        ("-o", "25..40", "--from", 1_700_000_000_028),
        lambda row: 25 <= row["offset"] < 40 and row["timestamp"] >= 1_700_000_000_028,
    ),
    "some partitions": (("-p", 2, "-p", 1), lambda row: row["partition"] > 0),
    "nothing": (("--from", "2030-01-01"), lambda _: False),
}


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("form", ["text", "json", TEMPLATE])
def test_cat_prints_the_intact_records_of_the_range(
    form: str, name: str, isolation: str, dump: Path
) -> None:
    given, holds = RANGES[name]
    wanted = [row for row in expected(dump, isolation) if holds(row)]
    result = run_here("cat", "topic", "--input", dump, "--isolation", isolation, "-f", form, *given)
    assert result.returncode in ((0,) if is_intact(dump) else (0, 1)), result.stderr
    if form == "text":
        lines = result.stdout.splitlines()[1:]
        assert [tuple(line.split()[:2]) for line in lines] == [
            (f"topic-{row['partition']}", str(row["offset"])) for row in wanted
        ]
    elif form == "json":
        assert [
            (row["topic"], row["partition"], row["offset"], row["timestamp_ms"], row["key_bytes"])
            for row in rows(result.stdout)
        ] == [
            (
                *("topic", row["partition"], row["offset"], row["timestamp"]),
                None if row["key"] is None else len(row["key"]),
            )
            for row in wanted
        ]
    else:
        printed = result.stdout.encode("utf-8", "surrogateescape")
        assert printed == b"".join(map(templated, wanted))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_damage_in_cat_is_a_line_on_stderr_and_exit_code_1(
    isolation: str, dump: Path, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    result = run_here(
        *("cat", "topic", "--input", dump, "--isolation", isolation, "-q", "--summary", summary)
    )
    told = json.loads(summary.read_text())
    assert told["counts"]["records"] == len(expected(dump, isolation))
    assert told["counts"]["partitions"] == 3
    if is_intact(dump):
        assert (result.returncode, result.stderr, told["counts"]["damage"]) == (0, "", 0)
        return
    assert (result.returncode, told["outcome"]) == (1, "damage")
    lines = result.stderr.splitlines()
    places = [line for line in lines if re.search(r"\.log: .*at byte \d", line)]
    assert len(places) == told["counts"]["damage"] >= 1
    assert told["conclusion"] in lines
    assert f"{len(places)} corrupt or unreadable range" in told["conclusion"]
    with pytest.raises(CorruptLogError):
        kafka_index.read_records(dump, topics="topic", isolation=isolation).read_all()


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("count", [1, 3, 17, 10_000])
@pytest.mark.parametrize("name", ["all", "offsets", "times", "nothing"])
def test_cat_tail_prints_the_last_records_of_each_partition(
    name: str, count: int, isolation: str, dump: Path
) -> None:
    given, holds = RANGES[name]
    wanted = [row for row in expected(dump, isolation) if holds(row)]
    last = [
        row
        for number in range(3)
        for row in [w for w in wanted if w["partition"] == number][-count:]
    ]
    more = ("--tail", "-n", count, "--isolation", isolation, *given)
    result = run_here("cat", "topic", "--input", dump, "-f", "json", *more)
    assert places(result.stdout) == [(row["partition"], row["offset"]) for row in last]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("held_bytes", [1, 1 << 26])
def test_records_by_time_keep_the_order_of_each_partition(
    held_bytes: int, isolation: str, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_index.commands.cat.result._SORTED_BYTES", held_bytes)
    monkeypatch.setattr("kafka_index.commands.cat.result._MIN_SORTED_BYTES", 1)
    latest: dict[int, int] = {}
    order = []
    for row in expected(dump, isolation):
        number = row["partition"]
        latest[number] = max(latest.get(number, -1), row["timestamp"])
        order.append((latest[number], number, row["offset"]))
    order.sort()
    arguments = ("--input", dump, "-f", "json", "--isolation", isolation, "--by-time")
    for more, wanted in (((), order), (("-n", 25), order[:25]), (("--tail",), order[-10:])):
        result = run_here("cat", "topic", *arguments, *more)
        assert places(result.stdout) == [(number, offset) for _, number, offset in wanted]


def test_cat_head_stops_reading_after_the_first_records(dump: Path) -> None:
    wanted = expected(dump)
    result = run_here("cat", "topic", "--input", dump, "-f", "json", "-n", 12)
    assert places(result.stdout) == [(row["partition"], row["offset"]) for row in wanted[:12]]
    assert (
        "12 records of topic in 3 partitions; further records were not read (--limit)"
        in result.stderr
    )


@pytest.mark.parametrize("given", [("--tail", "-n", 2), ("--from", 1_700_000_000_900)], ids=str)
def test_cat_does_not_read_records_before_the_range(
    tmp_path: Path, given: tuple[Argument, ...]
) -> None:
    start = 1_700_000_000_000
    logs = {
        first: b"".join(
            batch_of(at, [(start + at, b"k", b"v")]) for at in range(first, first + 500)
        )
        for first in (0, 500)
    }
    folder = write_partition(tmp_path, logs, indexed=True)
    path = folder / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[7065] ^= 1
    path.write_bytes(data)
    where = ("topic", "--input", tmp_path)
    assert len(rows(cat(0, *where, "-f", "json", *given))) == (2 if "--tail" in given else 100)
    assert "at byte 7000" in run_here("cat", *where).stderr


@pytest.mark.parametrize(
    "more", [(), ("--tail",), ("--by-time",), ("--from", "1970-01-01")], ids=str
)
def test_unreadable_partition_does_not_suppress_other_partitions(
    tmp_path: Path, more: tuple[Argument, ...]
) -> None:
    for number in range(3):
        write_partition(tmp_path, {0: batch_of(0, [(1, b"k", b"v")])}, f"topic-{number}")
    unread = tmp_path / "topic-1" / f"{0:020d}.log"
    unread.chmod(0)
    try:
        with enforce_permissions():
            result = run_here("cat", "topic", "--input", tmp_path, "-f", "json", *more)
    finally:
        unread.chmod(0o644)
    assert result.returncode == 3
    assert unread.name in result.stderr
    assert places(result.stdout) == [(0, 0), (2, 0)]


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ((), slice(None)),
        (("--tail", "-n", 5), slice(-5, None)),
        (("-n", 3), slice(3)),
        (("-o", "4..9"), slice(3, 8)),
    ],
    ids=str,
)
def test_remote_segments_are_read_too(more: tuple[Argument, ...], part: slice) -> None:
    remote = setting("aiven-plain").remote
    wanted = kafka_index.read_records(
        [], tiered=remote, topics="wallet_tx", partitions={"wallet_tx": [0]}, columns=["offset"]
    )
    offsets = wanted.read_all()["offset"].to_pylist()
    arguments = ("wallet_tx", "--tiered", remote, "-p", 0, "-f", "json", *more)
    assert [row["offset"] for row in rows(cat(0, *arguments))] == offsets[part] != []


def test_null_value_is_printed_as_the_given_text(dump: Path) -> None:
    arguments = ("topic", "--input", dump, "-p", 1, "-o", "6..8", "-f", r"%k,%s;")
    if is_intact(dump):
        assert cat(0, *arguments) == ",;,;"
        assert cat(0, *arguments, "-Z") == "NULL,NULL;,;"


def test_format_without_line_ends_prints_a_warning(dump: Path) -> None:
    where = ("cat", "topic", "--input", dump, "-p", 2, "-f")
    hint = r"the template of --format has no line break; append \n to the template"
    assert hint in run_here(*where, "%o").stderr
    for form in ("%o\\n", "%o\n", r"%o\x0a", "%R%s"):
        assert hint not in run_here(*where, form).stderr


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("-f", "%o %z"), "unknown token %z in the template"),
        (("-f", "%o %"), "unknown token % in the template"),
        (("-f", "jsno"), "found jsno"),
        (("-f", "json", "-Z"), "--null requires a template in --format"),
        (("-o", "5..5"), "--offsets contains no offset, because the end is exclusive (found 5..5)"),
        (("-o", ".."), "--offsets is not a range of offsets"),
        (("-o", "-5"), "--offsets is not a range of offsets"),
        (("-o", f"{2**63}.."), "exceeds the largest offset"),
        (("-n", "0"), "--limit is not a number in the valid range"),
        (("--to", "2020-01-01", "--from", "2020-01-01"), "the time range is empty"),
        (("-p", "9"), "the input has no partition payments-9"),
    ],
)
def test_contradictory_options_of_cat_are_wrong_usage(given: Sequence[str], reason: str) -> None:
    result = run_here("cat", "payments", "--input", DUMP, *given)
    assert (result.returncode, result.stdout) == (2, "")
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("payment", "--input", DUMP), "no topic matches 'payment' (the full name must match)"),
        (("payments", "-p", 0, "-p", 7, "--input", DUMP), "the input has no partition payments-7"),
        (("--input", DUMP / "payments-0", DUMP, "payments"), "give the topic before --input"),
        (("payments",), "no input: give --input"),
        (("--input", DUMP), "Missing argument 'TOPIC'"),
    ],
)
def test_missing_input_of_cat_is_wrong_usage(arguments: Sequence[Argument], reason: str) -> None:
    result = run_here("cat", *arguments)
    assert result.returncode == 2
    assert reason in result.stderr


def test_find_without_a_condition_names_the_missing_option() -> None:
    result = run_here("find", "--input", DUMP)
    assert result.returncode == 2
    assert "kafka-index cat prints all records of a topic" in result.stderr


def test_empty_time_range_reports_the_existing_times() -> None:
    result = run_here("cat", "payments", "--input", DUMP, "--from", "2030-01-01")
    assert (result.returncode, result.stdout) == (0, "")
    assert "no record of payments in 2 partitions" in result.stderr
    assert (
        "is after all records of the input: the first record is from 2026-11-21T" in result.stderr
    )


def test_records_of_internal_topics_are_decoded() -> None:
    assert '"group"' in cat(0, "__consumer_offsets", "--input", DUMP, "-n", 3)


@pytest.mark.parametrize("form", ["text", "json", r"%o %S %R%s\n"])
def test_secrets_of_the_cluster_are_skipped(tmp_path: Path, form: str) -> None:
    settings = {"sasl.jaas.config": "hunter2", "log.cleaner.threads": "seven"}
    records = (
        cluster_record("ConfigRecord", resourceType=4, resourceName="", name=name, value=value)
        for name, value in settings.items()
    )
    write_log(tmp_path / "__cluster_metadata-0", log_batch(0, *records))
    text = cat(0, "__cluster_metadata", "--input", tmp_path, "-f", form)
    assert "seven" in text
    assert "hunter2" not in text


def test_control_characters_of_a_record_are_escaped_on_a_terminal(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch_of(0, [(1, b"\x1b]0;k\x07", b"a\xffb\n")])})
    for form, shown in (
        (r"%k %s\n", r"\033]0;k\a a\377b\n"),
        ("text", r'"\u001b]0;k\u0007"  0x61ff620a'),
    ):
        printed = run_on_a_terminal(400, "cat", "topic", "--input", tmp_path, "-q", "-f", form)
        assert printed[-1].endswith(shown)


def started(*arguments: Argument) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "cat", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def test_closed_pipe_ends_cat_silently() -> None:
    with started("page-views", "--input", DUMP) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"partition")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_SECONDS) == 141


def test_interrupted_cat_prints_one_line() -> None:
    with started("page-views", "--input", DUMP) as process:
        assert process.stdout is not None
        # The pipe is full: it waits for its reader.
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 130
    assert said == b"kafka-index: error: interrupted\n"


def test_decoded_records_are_json(tmp_path: Path) -> None:
    dump = write_typed_dump(tmp_path)
    arguments = ("orders", "--input", dump, "--decode", "both")
    expected = [one.expected for one in topics()["orders"]]
    printed = rows(cat(0, *arguments, "--format", "json"))
    assert [row["decoded"]["value"] for row in printed] == expected
    assert [row["decoded"]["key"] for row in printed] == ["k-1", "k-2", "k-1", "k-3"]
    assert printed[1]["value_bytes"] == len(topics()["orders"][1].value or b"")
    tail = cat(0, *arguments, "--tail", "-n", "1", "--by-time", "--format", r"%k %s\n")
    assert json.loads(tail.partition(" ")[2]) == expected[-1]
    bad = rows(cat(1, "mixed", "--input", dump, "--decode", "value", "--format", "json"))
    assert [row["decoded"]["error"] for row in bad] == [one.error for one in topics()["mixed"]]
    result = run_here(
        "cat", "mixed", "--input", dump, "--decode", "value", "--decode-errors", "fail"
    )
    assert "does not decode: no_magic" in result.stderr
    assert result.returncode == 1


def test_records_without_any_readable_schema_have_decoded_fields(tmp_path: Path) -> None:
    dump = write_typed_dump(tmp_path)
    write_topic(dump, "deleted", [(b"k", framed(99, b"\0")), (b"l", b"plain")])
    arguments = ("deleted", "--input", dump, "--decode", "value", "--format", "json")
    printed = rows(cat(1, *arguments))
    assert [row["decoded"]["error"] for row in printed] == ["unknown_id", None]
    # A row does not depend on the errors of other rows.
    assert rows(cat(0, *arguments, "-o", "1..2")) == printed[1:]
