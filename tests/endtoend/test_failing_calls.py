"""Commands of which any call fails: after exit code 3, the same command line finishes the work."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builds import small_disk
from tests.support.campaign import drawn
from tests.support.command_line import SETTINGS, Argument, copy_partitions, run_here
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.restoring import contents

QUERIES = "topic,partition,offset\npayments,0,5\npayments,0,7\naudit.trail,0,1\n"
#: What a rerun may leave differently: what it did, and when.
RECORDS = (".kafka-index", "summary", "build-report")
_ENVIRONMENT = 3
_LAST_STEP = 80

COMMANDS: dict[str, list[Argument]] = {
    "lookup-file": [
        *("lookup", "--logs", "{data}", "--by", "timestamp", "--queries", "{data}/../times.csv"),
        *("--output", "{out}/answers.csv", "--report", "{out}/report.json"),
        *("--starting-offsets", "{out}/starts.json"),
    ],
    "lookup-folder": [
        *("lookup", "--logs", "{data}", "--by", "offset", "--queries", "{asked}"),
        *("--output", "{out}/answers", "--report", "{out}/report.csv"),
    ],
    "build": [
        *("build", "--input", "{data}", "--output", "{out}/indexes", "--config", str(SETTINGS)),
        *("--report", "{out}/build-report.json"),
    ],
    "export": ["export", "--input", "{data}", "--output", "{out}/records"],
    "verify": ["verify", "--input", "{data}", "--report", "{out}/report.json"],
    "predict": ["predict", "--input", "{data}", "--report", "{out}/report.csv"],
}


def command_line(name: str, data: Path, out: Path) -> list[Argument]:
    places = {"data": data / "data", "asked": data / "asked", "out": out}
    given: list[Argument] = [str(argument).format(**places) for argument in COMMANDS[name]]
    given += ["--summary", str(out / "summary.json")]
    return given if name == "predict" else [*given, "--quiet", "--threads", 1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failing")
    copy_partitions(folder / "data", "payments-0", "audit.trail-0")
    (folder / "asked").mkdir()
    (folder / "asked/one.csv").write_text(QUERIES)
    (folder / "times.csv").write_text(
        "topic,partition,timestamp\npayments,0,-2\naudit.trail,0,-1\n"
    )
    (folder / "asked/two.csv").write_text(QUERIES)
    return folder


def written(out: Path) -> dict[str, bytes]:
    """Return what a command leaves, but for records of runs; paths are those of any place."""
    return {
        name: data.replace(str(out).encode(), b"OUT")
        for name, data in contents(out).items()
        if not any(part in name for part in RECORDS)
    }


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledRuns]:
    out = tmp_path_factory.mktemp("warm-up")
    with KilledRuns(*command_line("lookup-file", data, out)) as runs:
        yield runs


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_line_finishes_the_work(
    name: str, failure: Failure, data: Path, runs: KilledRuns, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    code = run_here(*map(str, command_line(name, data, whole))).returncode
    expected = written(whole)
    assert code in (0, 1)
    for step in range(1, _LAST_STEP, _LAST_STEP // drawn(_LAST_STEP, one_in=20)):
        out = tmp_path / "out"
        out.mkdir()
        arguments = command_line(name, data, out)
        ended = runs.failing(out, step, failure, *arguments)
        assert ended in (code, _ENVIRONMENT, -signal.SIGKILL), step
        if ended != code:
            again = run_here(*map(str, arguments))
            assert again.returncode == code, (step, again.stderr)
        assert written(out) == expected, step
        shutil.rmtree(out)


@pytest.mark.parametrize("command", ["verify", "build"])
def test_an_answer_is_printed_though_its_report_does_not_fit(
    command: str, data: Path, tmp_path: Path
) -> None:
    given: list[Argument] = [command, "--input", data / "data"]
    if command == "build":
        given += ["--output", tmp_path / "out", "--force"]
    printed = run_here(*map(str, given)).stdout.splitlines()
    with small_disk(tmp_path / "small", "4k") as disk:
        (disk / "full").write_bytes(bytes(4096))
        done = run_here(*map(str, given), "--report", disk / "report.json")

    assert done.returncode == 3
    assert "no space left" in done.stderr
    assert len(done.stdout.splitlines()) == len(printed) > 0
