"""Builds of tiered dumps: standard files, equal to the uploaded files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.csv as pc
import pytest

from kafka_index.core.cluster.merged_listing import list_merged
from kafka_index.core.format.names import segment_file_name
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import TieredOptions, is_segment_path
from tests.support.command_line import Argument, build_here, kafka_index
from tests.support.tiered import ENCRYPTED, SETTINGS, Setting, keys, setting

#: ``index.interval.bytes`` of the brokers' topics.
_INTERVAL = 600


def arguments(at: Setting, *more: Argument) -> list[Argument]:
    """Return the options for the dump of a setting."""
    pairs = [text for name, path in at.keys for text in ("--tiered-key", f"{name}={path}")]
    return ["--input", at.data, "--tiered", at.remote, *pairs, *more]


def _build(at: Setting, tmp_path: Path, *more: Argument) -> tuple[Path, list[dict[str, Any]]]:
    output, report = tmp_path / "output", tmp_path / "report.csv"
    result = build_here(
        *arguments(at, "--output", output, "--report", report),
        "--index-interval-bytes",
        _INTERVAL,
        *more,
    )
    assert result.returncode == 0, result.stderr
    return output, pc.read_csv(report).to_pylist()


@pytest.mark.parametrize("name", SETTINGS)
def test_build_writes_the_files_that_the_brokers_uploaded(name: str, tmp_path: Path) -> None:
    at = setting(name)
    output, rows = _build(at, tmp_path)
    noted = {row["log_path"]: row["note"] for row in rows if "stored" in row["note"]}
    equal = 0
    with keys(at.keys):
        listing = list_merged([at.data], TieredOptions((at.remote,)), topics=None)
        for segment in listing.segments:
            if not is_segment_path(segment.log_path):
                continue
            folder = output / f"{segment.topic}-{segment.partition}"
            for suffix in (".index", ".timeindex", ".txnindex"):
                path = segment.log_path.removesuffix(".log") + suffix
                built = folder / segment_file_name(segment.base_offset, suffix)
                try:
                    stored = store_of(path).read(path)
                except FileNotFoundError:
                    assert not built.exists()
                    continue
                if built.read_bytes() == stored:
                    equal += 1
                else:
                    assert f"the stored {suffix} differs" in noted[segment.log_path]
    # After a restart, a broker counts the index interval from 0, in the middle of a segment.
    assert len(noted) <= 4
    assert equal > 70


def test_build_reports_the_position_of_a_damaged_remote_index(tmp_path: Path) -> None:
    at = Setting(tmp_path / "aiven-plain")
    shutil.copytree(setting("aiven-plain").path, at.path)
    key = next(segment for segment in at.segments() if "log_gz" in segment.name)
    indexes = Path(f"{at.remote}/{key.name}.indexes")
    data = bytearray(indexes.read_bytes())
    data[3] ^= 1
    indexes.write_bytes(data)

    _, rows = _build(at, tmp_path, "--topics", "log_gz")

    (note,) = (row["note"] for row in rows if row["log_path"] == at.file(key, ".log"))
    assert note.startswith("the stored .index differs from the built .index at entry 0")


def test_unreadable_segment_is_a_row_with_object_and_chunk(tmp_path: Path) -> None:
    at = Setting(tmp_path / ENCRYPTED)
    shutil.copytree(setting(ENCRYPTED).path, at.path)
    key = min(
        (segment for segment in at.segments() if "log_gz" in segment.name),
        key=lambda k: k.start_offset,
    )
    log = Path(f"{at.remote}/{key.name}.log")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    report = tmp_path / "report.csv"

    result = build_here(
        *arguments(at, "--output", tmp_path / "output", "--report", report, "--topics", "log_gz")
    )

    assert result.returncode == 1
    rows = pc.read_csv(report).to_pylist()
    (failed,) = (row for row in rows if row["status"] == "failed")
    assert failed["log_path"] == at.file(key, ".log")
    assert str(log) in failed["reason"]
    assert "cannot be read: the GCM tag does not match" in failed["reason"]


def test_build_of_remote_objects_only_reports_the_start_as_a_lower_bound(
    tmp_path: Path,
) -> None:
    at = setting("local")
    report = tmp_path / "report.csv"
    result = build_here("--tiered", at.remote, "--output", tmp_path / "out", "--report", report)

    assert result.returncode == 0, result.stderr
    rows = pc.read_csv(report).to_pylist()
    assert {row["status"] for row in rows} == {"built"}
    assert len(rows) == 84
    assert any("the log may start later than its first segment" in row["note"] for row in rows)


def test_rerun_of_a_remote_build_reads_no_log(tmp_path: Path) -> None:
    at = setting("aiven-zstd")
    _build(at, tmp_path)
    _, rows = _build(at, tmp_path)

    assert {row["status"] for row in rows} == {"unchanged"}


def test_outputs_contain_no_key_material(tmp_path: Path) -> None:
    at = setting(ENCRYPTED)
    result = kafka_index(
        "build",
        *arguments(at, "--output", tmp_path / "out", "--report", tmp_path / "report.csv"),
        "--verbose",
    )
    secrets = {
        line
        for _, path in at.keys
        for line in Path(path).read_text().splitlines()
        if not line.startswith("-----")
    }
    texts = [result.stdout, result.stderr, (tmp_path / "report.csv").read_text()]
    assert result.returncode == 0
    assert not [secret for secret in secrets for text in texts if secret in text]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tiered-format", "aiven"], "--tiered-format requires --tiered"),
        (["--key-prefix", "a"], "--key-prefix requires --tiered"),
        (["--topic-id", "a"], "--topic-id requires --tiered"),
        (["--tiered", "/", "--tiered-key", "x"], "expected KEYID=PEM"),
        (["--tiered", "/", "--tiered-key", "x=/none"], "/none is not a file"),
        (["--tiered", "/", "--in-place"], "--tiered and --in-place are mutually exclusive"),
    ],
)
def test_options_without_meaning_for_remote_builds_are_wrong_usage(
    options: list[str], message: str
) -> None:
    result = build_here("--input", "/", *options)

    assert result.returncode == 2
    assert message in result.stderr
