"""The ``predict`` command."""

from __future__ import annotations

import json
import resource
import shutil
import struct
from functools import partial
from pathlib import Path
from typing import TextIO

import pyarrow.parquet as pq
import pytest

from kafka_index.cli.predict_text import Shown, print_prediction
from kafka_index.config import LogConfig
from kafka_index.startup import StartConditions, predict_directories
from tests.support.builds import finish, start
from tests.support.child_processes import open_to_all
from tests.support.command_line import DUMP, run_here
from tests.support.terminals import shown_on_a_terminal

predict = partial(run_here, "predict")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    target = tmp_path / "data"
    shutil.copytree(DUMP, target)
    (target / ".kafka_cleanshutdown").write_text("{}")
    return target


def tear(data: Path) -> None:
    last = max((data / "app-logs-0").glob("*.log"))
    _, position = struct.unpack(">ii", last.with_suffix(".index").read_bytes()[-8:])
    last.write_bytes(last.read_bytes()[: position + 100])


def test_a_safe_start_is_exit_code_0(data: Path) -> None:
    done = predict("--input", data, "--metadata", data)

    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("safe")


@pytest.mark.parametrize(
    "name", ["app-logs-0/*.log", "meta.properties", "replication-offset-checkpoint"]
)
def test_what_may_not_be_read_is_exit_code_3_and_no_verdict(
    data: Path, tmp_path: Path, name: str
) -> None:
    open_to_all(tmp_path)
    path = min(data.glob(name))
    path.chmod(0)

    done = finish(start("--input", data, command_name="predict", privileged=False))

    assert done.returncode == 3, done.stdout + done.stderr
    assert str(path) in done.stderr
    assert not done.stdout.startswith(("safe", "loses"))


def test_a_loss_is_exit_code_1_and_the_better_way_is_suggested(data: Path) -> None:
    tear(data)

    done = predict("--input", data)

    assert done.returncode == 1
    verdict, *lines = done.stdout.splitlines()
    assert verdict.startswith("loses")
    assert any("lost or hidden: offsets 2117 to" in line for line in lines)
    assert lines[-1].startswith("suggestion: without .kafka_cleanshutdown 0 records are lost")
    assert lines[-1].endswith("On a copy.")


def test_json_is_one_object_with_the_verdict(data: Path) -> None:
    tear(data)

    found = json.loads(predict("--input", data, "--json").stdout)

    assert found["verdict"] == "loses"
    (lossy,) = [one for one in found["partitions"] if one["records_lost"]]
    assert (lossy["topic"], lossy["partition"], lossy["log_end"]) == ("app-logs", 0, 2117)
    assert lossy["first_lost_offset"] == 2117
    assert {segment["action"] for segment in lossy["segments"]} == {"keep"}


def test_a_report_has_a_row_per_segment(data: Path, tmp_path: Path) -> None:
    assert predict("--input", data, "--report", tmp_path / "r.parquet").returncode == 0

    table = pq.read_table(tmp_path / "r.parquet")
    assert table.num_rows == len(
        [path for path in data.glob("*/*.log") if "__cluster_metadata" not in str(path)]
    )


def test_a_directory_is_required() -> None:
    assert predict().returncode == 2


def test_a_report_that_cannot_be_written_is_found_out_before_the_logs_are_read(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    done = predict("--input", data, "--report", tmp_path / "file" / "r.json")

    assert done.returncode == 3
    assert done.stdout == ""
    assert str(tmp_path / "file") in done.stderr


def test_the_answer_is_printed_where_the_report_cannot_be_finished(
    data: Path, tmp_path: Path
) -> None:
    # A report is a few kilobytes; the disk takes less.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        done = predict("--input", data, "--report", tmp_path / "r.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("safe")
    assert not (tmp_path / "r.json").exists()


def test_a_file_in_place_of_a_directory_is_wrong_usage(data: Path) -> None:
    done = predict("--input", data / "meta.properties")

    assert done.returncode == 2
    assert "meta.properties: not a directory; give the data directories" in done.stderr


def test_notes_are_wrapped_at_words(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    prediction = predict_directories([str(data)], StartConditions(LogConfig()))

    def show(stream: TextIO) -> None:
        print_prediction(prediction, None, stream, shown=Shown.BRIEF)

    narrow, wide = (shown_on_a_terminal(columns, show) for columns in (40, 4000))
    assert len(narrow) > len(wide)
    assert [word for line in narrow for word in line.split()] == [
        word for line in wide for word in line.split()
    ]
