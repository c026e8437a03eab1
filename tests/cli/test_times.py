"""The times of every command: one parser, and ranges that hold a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

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
def test_every_option_refuses_the_same_times(place: str, text: str, tmp_path: Path) -> None:
    command, *given = _given(place, tmp_path)
    done = run_here(str(command), *given, text)
    assert done.returncode == 2
    assert REFUSED[text] in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", TAKEN)
@pytest.mark.parametrize("place", [place for place in PLACES if "restore" not in place])
def test_every_option_takes_the_same_times(place: str, text: str, tmp_path: Path) -> None:
    command, *given = _given(place, tmp_path)
    done = run_here(str(command), *given, text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["dump", "find", "export"])
@pytest.mark.parametrize(("start", "end"), [("-1h", "-1h"), ("now", "-7d"), ("now", "today")])
def test_a_range_that_no_time_is_in_is_refused(
    command: str, start: str, end: str, tmp_path: Path
) -> None:
    given = _given(f"{command} --from", tmp_path)[1:]
    done = run_here(command, *given, start, "--to", end)
    assert done.returncode == 2
    assert "no time is in the range: --from is" in done.stderr
    assert not (tmp_path / "out").exists()
