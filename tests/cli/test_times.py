"""The times of every command: one parser, and ranges that hold a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index.core.errors import InputError
from tests.support.command_line import DUMP, Argument, run_here

SEGMENT = DUMP / "payments-0" / "00000000000000000000.log"
PLACES: dict[str, Sequence[Argument]] = {
    "lookup --at": ("lookup", "--logs", DUMP, "--topic", "payments", "--at"),
    "lookup --timestamp": ("lookup", "--logs", DUMP, "--topic", "payments", "--timestamp"),
    "dump --from": ("dump", SEGMENT, "--limit", 1, "--from"),
    "dump --to": ("dump", SEGMENT, "--limit", 1, "--to"),
    "dump --time": ("dump", SEGMENT, "--time"),
    "find --from": ("find", "--input", DUMP, "--topics", "payments", "--key", "x", "--from"),
    "find --to": ("find", "--input", DUMP, "--topics", "payments", "--key", "x", "--to"),
    "cat --from": ("cat", "payments", "--input", DUMP, "--from"),
    "cat --to": ("cat", "payments", "--input", DUMP, "--to"),
    "export --from": (
        "export",
        "--input",
        DUMP,
        "--topics",
        "payments",
        "--output",
        "OUT",
        "--from",
    ),
    "export --to": ("export", "--input", DUMP, "--topics", "payments", "--output", "OUT", "--to"),
    "restore --until": ("restore", "--input", DUMP, "--output", "OUT", "--until"),
    "build --expire-producers-at": (
        *("build", "--input", DUMP, "--topics", "payments", "--output", "OUT"),
        "--expire-producers-at",
    ),
}
REFUSED = {
    "1795245919": "looks like seconds (2026-11-21T07:25:19.000Z)",
    "1795245919000000": "looks like microseconds",
    "-90": "before 1970",
    "tomorrow": "neither milliseconds nor a time",
}
TAKEN = ("2026-11-21T07:25:19Z", "2026-11-21", "1795245919000", "now", "today", "-90m", "-1d")


def _given(place: str, folder: Path) -> list[Argument]:
    return [folder / "out" if each == "OUT" else each for each in PLACES[place]]


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("place", PLACES)
def test_every_time_option_rejects_the_same_times(place: str, text: str, tmp_path: Path) -> None:
    command, *given = _given(place, tmp_path)
    result = run_here(str(command), *given, text)
    assert result.returncode == 2
    assert REFUSED[text] in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", TAKEN)
@pytest.mark.parametrize("place", [place for place in PLACES if "restore" not in place])
def test_every_time_option_accepts_the_same_times(place: str, text: str, tmp_path: Path) -> None:
    command, *given = _given(place, tmp_path)
    result = run_here(str(command), *given, text)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", ["dump", "find", "cat", "export"])
@pytest.mark.parametrize(("start", "end"), [("-1h", "-1h"), ("now", "-7d"), ("now", "today")])
def test_empty_time_range_is_rejected(command: str, start: str, end: str, tmp_path: Path) -> None:
    given = _given(f"{command} --from", tmp_path)[1:]
    result = run_here(command, *given, start, "--to", end)
    assert result.returncode == 2
    assert "the time range is empty: --from is" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", [SEGMENT, SEGMENT.with_suffix(".timeindex")])
@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize(
    ("given", "place"),
    [
        (("--from", "2030-01-01"), "after all records of the file"),
        (("--time", "2030-01-01"), "after all records of the file"),
        (("--to", "2020-01-01"), "before the first record of the file"),
    ],
)
def test_dump_of_an_empty_time_range_reports_the_times_of_the_file(
    given: tuple[str, str], place: str, more: tuple[str, ...], file: Path
) -> None:
    for records in [(), ("--records",)] if file == SEGMENT else [()]:
        result = run_here("dump", file, *given, *more, *records)
        assert result.returncode == 0, result.stderr
        assert f"is {place}: the first record is from 2026-11-21T" in result.stderr


def test_lookup_after_all_records_reports_the_times_of_the_log() -> None:
    place = ("--logs", DUMP, "--topic", "payments", "--partition", 0)
    result = run_here("lookup", *place, "--at", "2030-01-01")
    assert "no_record_at_or_after" in result.stdout
    assert "the first record is from 2026-11-21T" in result.stdout


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"starting_timestamp": "2030-01-01"}, "after all records of the input"),
        ({"ending_timestamp": date(2020, 1, 1)}, "before the first record of the input"),
        ({"starting_timestamp": {"payments": {0: "2030-01-01"}}}, None),
        ({"starting_timestamp": "2020-01-01"}, None),
    ],
)
def test_empty_read_warns_with_the_existing_times(
    given: dict[str, Any], place: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        rows = kafka_index.read_records(DUMP, topics="payments", **given).read_all()
    assert bool(len(rows)) == (place is None)
    assert [place in message for message in caplog.messages if place] == [True] * (
        place is not None
    )


@pytest.mark.parametrize(
    "given",
    [
        {"starting_timestamp": "now", "ending_timestamp": "-1h"},
        {"starting_timestamp": "today", "ending_timestamp": {"payments": {0: "today"}}},
        {"starting_timestamp": 1_795_245_919},
        {"ending_timestamp": {"payments": {0: 1_795_245_919}}},
    ],
)
def test_read_records_rejects_the_times_that_commands_reject(given: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"no time is in the range|the time range is empty|looks like seconds"
    ):
        kafka_index.read_records(DUMP, topics="payments", **given)
