"""The ``predict`` command."""

from __future__ import annotations

import json
import resource
import shutil
import struct
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq
import pytest

from tests.support.builds import finish, start
from tests.support.child_processes import allow_other_users
from tests.support.command_line import DUMP, run_here
from tests.support.metadata import snapshot_of

predict = partial(run_here, "predict")


def conclusion(done: CompletedProcess[str]) -> str:
    """Return the last line of the output before the next command."""
    return [line for line in done.stdout.splitlines() if not line.startswith("next: ")][-1]


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


def test_safe_start_is_exit_code_0(data: Path) -> None:
    result = predict("--input", data, "--metadata", data)

    assert result.returncode == 0, result.stdout
    assert conclusion(result).startswith("safe")


def metadata_apart(data: Path, log_dirs: Path) -> tuple[Path, Path]:
    """Give the metadata log a directory of its own; return it, and the broker's settings."""
    metadata = data.with_name("metadata")
    metadata.mkdir()
    (data / "__cluster_metadata-0").rename(metadata / "__cluster_metadata-0")
    (data / "bootstrap.checkpoint").rename(metadata / "bootstrap.checkpoint")
    lines = (data / "meta.properties").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("directory.id")]
    (metadata / "meta.properties").write_text("".join(kept))
    config = data.with_name("server.properties")
    config.write_text(f"log.dirs={log_dirs}\nmetadata.log.dir={log_dirs.with_name('metadata')}\n")
    return metadata, config


@pytest.mark.parametrize("is_here", [True, False], ids=["in place", "copied"])
def test_configured_metadata_log_can_also_be_an_input(data: Path, *, is_here: bool) -> None:
    metadata, config = metadata_apart(data, data if is_here else Path("/var/kafka/data"))

    result = predict("--input", data, metadata, "--config", config)

    assert result.returncode == 0, result.stdout
    assert conclusion(result).startswith("safe")
    assert "not checked" not in result.stdout


@pytest.mark.parametrize(
    ("log_dirs", "verdict"),
    [
        ("{root}/data,{root}/other", "safe"),
        ("{root}/data,{root}/empty", "does_not_start"),
        ("{root}/data,{root}/absent", "does_not_start"),
        ("/of/another/machine", "safe"),
        ("/of/another/machine,/second", "unknown"),
    ],
)
@pytest.mark.parametrize("has_metadata", [True, False], ids=["both given", "data given"])
def test_data_directories_only_in_the_settings_are_checked_or_unknown(
    data: Path, log_dirs: str, verdict: str, *, has_metadata: bool
) -> None:
    is_here = log_dirs.startswith("{root}")
    metadata, config = metadata_apart(data, data if is_here else Path("/of/another/data"))
    for name in ("empty", "other"):
        data.with_name(name).mkdir()
    shutil.copy(metadata / "meta.properties", data.with_name("other"))
    with config.open("a") as file:
        file.write(f"log.dirs={log_dirs.format(root=data.parent)}\n")

    result = predict("--input", data, *([metadata] * has_metadata), "--config", config)

    assert conclusion(result).split()[0].strip(":") == verdict, result.stdout


def test_sole_controller_keeps_metadata_before_the_torn_tail(data: Path) -> None:
    metadata, config = metadata_apart(data, data)
    (log,) = metadata.glob("*/*.log")
    log.write_bytes(log.read_bytes()[:-7])
    torn = predict("--input", data, "--config", config)
    state = metadata / "__cluster_metadata-0/quorum-state"
    state.write_text(state.read_text().replace('[{"voterId":1}]', '[{"voterId":1},{"voterId":2}]'))
    of_two = predict("--input", data, "--config", config)
    log.write_bytes(log.read_bytes()[:1000])
    short = predict("--input", data, "--config", config)

    assert conclusion(torn).startswith("safe: "), torn.stdout + torn.stderr
    assert conclusion(of_two).startswith("unknown: the metadata log is truncated")
    assert str(log) in of_two.stdout
    assert [each.returncode for each in (torn, of_two, short)] == [0, 1, 1]


@pytest.mark.parametrize("voters", [1, 2])
def test_metadata_records_are_predicted_lost_only_with_a_single_controller(
    data: Path, voters: int
) -> None:
    metadata, config = metadata_apart(data, data)
    (log,) = metadata.glob("*/*.log")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    state = metadata / "__cluster_metadata-0/quorum-state"
    others = "".join(f',{{"voterId":{voter}}}' for voter in range(2, voters + 1))
    state.write_text(state.read_text().replace('[{"voterId":1}]', f'[{{"voterId":1}}{others}]'))

    result = predict("--input", data, "--config", config)

    if voters == 1:
        assert conclusion(result).startswith("loses"), result.stdout
        assert f"{log.parent}: loaded, log start 0 to 0, log end " in result.stdout
    else:
        assert conclusion(result).startswith("unknown: the metadata log is truncated"), (
            result.stdout
        )


@pytest.mark.parametrize(("lost_bytes", "verdict"), [(3, "safe"), (100, "unknown")])
def test_metadata_snapshot_with_a_torn_footer_is_complete(
    data: Path, lost_bytes: int, verdict: str
) -> None:
    log = data / "__cluster_metadata-0"
    snapshot = snapshot_of(log)
    for path in [*log.glob("*.log"), *log.glob("*index"), *log.glob("*.snapshot")]:
        path.unlink()
    snapshot.write_bytes(snapshot.read_bytes()[:-lost_bytes])

    result = predict("--input", data)

    assert conclusion(result).startswith(verdict), result.stdout + result.stderr


@pytest.mark.parametrize(
    "name", ["app-logs-0/*.log", "meta.properties", "replication-offset-checkpoint"]
)
def test_unreadable_input_of_predict_is_exit_code_3_without_verdict(
    data: Path, tmp_path: Path, name: str
) -> None:
    allow_other_users(tmp_path)
    path = min(data.glob(name))
    path.chmod(0)

    result = finish(start("--input", data, command_name="predict", privileged=False))

    assert result.returncode == 3, result.stdout + result.stderr
    assert str(path) in result.stderr
    assert result.stdout == ""


def test_predicted_loss_is_exit_code_1_with_a_suggestion(data: Path) -> None:
    tear(data)

    result = predict("--input", data)

    assert result.returncode == 1
    assert conclusion(result).startswith("loses: a broker starts, ")
    assert "records lost or unreadable: offsets 2117 to" in result.stdout
    assert "  start a copy without .kafka_cleanshutdown: 0 records lost" in result.stdout


def test_json_is_one_object_with_the_verdict(data: Path) -> None:
    tear(data)

    document = json.loads(predict("--input", data, "--json").stdout)

    assert document["verdict"] == "loses"
    (lossy,) = [one for one in document["partitions"] if one["records_lost"]]
    assert (lossy["topic"], lossy["partition"], lossy["log_end"]) == ("app-logs", 0, 2117)
    assert lossy["first_lost_offset"] == 2117
    assert {segment["action"] for segment in lossy["segments"]} == {"keep"}


def test_report_has_a_row_per_segment(data: Path, tmp_path: Path) -> None:
    assert predict("--input", data, "--report", tmp_path / "r.parquet").returncode == 0

    table = pq.read_table(tmp_path / "r.parquet")
    assert table.num_rows == len(
        [path for path in data.glob("*/*.log") if "__cluster_metadata" not in str(path)]
    )


def test_predict_requires_a_directory() -> None:
    assert predict().returncode == 2


def test_unwritable_report_is_rejected_before_logs_are_read(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = predict("--input", data, "--report", tmp_path / "file" / "r.json")

    assert result.returncode == 3
    assert result.stdout == ""
    assert str(tmp_path / "file") in result.stderr


def test_verdict_is_printed_if_the_report_cannot_be_finished(data: Path, tmp_path: Path) -> None:
    # A report is a few kilobytes; the disk takes less.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        result = predict("--input", data, "--report", tmp_path / "r.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert result.returncode == 3, result.stderr
    assert conclusion(result).startswith("safe")
    assert not (tmp_path / "r.json").exists()


def test_file_in_place_of_a_directory_is_wrong_usage(data: Path) -> None:
    result = predict("--input", data / "meta.properties")

    assert result.returncode == 2
    assert "meta.properties: the path is not a directory; give the data" in result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "No such file or directory"),
        ("empty", "no segments found"),
        ("data/app-logs-0", "the input is a partition directory, not a data directory; give "),
    ],
)
def test_input_without_a_data_directory_is_wrong_usage(data: Path, name: str, message: str) -> None:
    data.with_name("empty").mkdir()
    path = data.parent / name

    result = predict("--input", path)

    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def test_quiet_prints_only_reasons_of_unsafe_starts(data: Path) -> None:
    safe = predict("--input", data, "--quiet")
    tear(data)
    lossy = predict("--input", data, "--quiet")

    assert (safe.returncode, safe.stdout, safe.stderr) == (0, "", "")
    assert (lossy.returncode, lossy.stdout) == (1, "")
    verdict, following = lossy.stderr.splitlines()[-2:]
    assert verdict.startswith("loses: ")
    assert following == f"next: kafka-index verify --input {data}"


@pytest.mark.parametrize("ending", ["parquet", "json", "csv"])
def test_losses_listed_in_a_restore_report_are_not_predicted_again(
    data: Path, tmp_path: Path, ending: str
) -> None:
    log = sorted((data / "payments-0").glob("*.log"))[1]
    log.write_bytes(log.read_bytes()[:-100])
    output, report = tmp_path / "restored", tmp_path / f"report.{ending}"
    options = ("--topics", "payments", "--salvage", "batches", "--report", report)
    restored = run_here("restore", "--input", data, "--output", output, *options)
    known = ("--input", output, "--known-losses", report)

    first = predict("--input", output)
    result = predict(*known)
    (next_segment,) = (output / "payments-0").glob("*1056.log")
    for path in next_segment.parent.glob(f"{next_segment.stem}.*"):
        path.unlink()
    later = predict(*known)

    assert restored.returncode == 1, restored.stderr
    assert [first.returncode, result.returncode, later.returncode] == [1, 0, 1]
    assert conclusion(result).startswith("safe"), result.stdout
    assert "the restore report lists offsets 1055 to 1055 as lost" in result.stdout


def test_known_losses_without_a_restore_report_is_wrong_usage(data: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.csv"
    report.write_text("a,b\n1,2\n")

    result = predict("--input", data, "--known-losses", report)

    assert result.returncode == 2
    assert f"{report}: cannot read the restore report" in result.stderr
