"""Errors on which a broker does not start: verify and predict apply the same rules."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kafka_index import verify
from kafka_index.commands.verify.state_files import CheckedRoot, identity_findings
from kafka_index.core.format.config import LogConfig
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories
from kafka_index.core.startup.prediction import Verdict
from tests.support.command_line import DUMP
from tests.support.restoring import copy_dump

PARTITION = "app-logs-0"
MARKED = "payments-0.0123456789abcdef0123456789abcdef"
_ID = "AAAAAAAAAAAAAAAAAAAAZQ"
Change = Callable[[Path], object]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a live, a deleted and a stray partition."""
    target = copy_dump(tmp_path / "data", PARTITION)
    for mark in ("delete", "stray"):
        shutil.copytree(DUMP / "payments-0", target / f"{MARKED}-{mark}")
    return target


def written(name: str, text: str = "") -> Change:
    def change(data: Path) -> None:
        (data / name).write_text(text)

    return change


def without_logs(name: str) -> Change:
    """Create a live partition that contains only a file with this name."""

    def change(data: Path) -> None:
        (data / "other-0").mkdir()
        (data / "other-0" / name).touch()

    return change


def property_of(name: str, value: str | None) -> Change:
    def change(data: Path) -> None:
        path = data / "meta.properties"
        lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{name}=")]
        path.write_text("\n".join([*lines, *([] if value is None else [f"{name}={value}"])]) + "\n")

    return change


def another_directory(data: Path) -> Path:
    """Create a second data directory with the same directory ID."""
    other = data.parent / "data-2"
    shutil.copytree(DUMP / "payments-0", other / "payments-0")
    shutil.copy(data / "meta.properties", other)
    return other


def two_metadata_logs(data: Path) -> None:
    """Create a second data directory of the same broker, each with a metadata log."""
    other = another_directory(data)
    property_of("directory.id", _ID)(other)
    for each in (data, other):
        (each / "__cluster_metadata-0").mkdir()


def linked_index(data: Path) -> None:
    """Replace the first index by a broken link."""
    path = min((data / PARTITION).glob("*.index"))
    path.unlink()
    path.symlink_to("/nonexistent/index")


def snapshot_directory(data: Path) -> None:
    """Replace the last snapshot by a directory."""
    path = max((data / PARTITION).glob("*.snapshot"))
    path.unlink()
    path.mkdir()


def snapshot_pipe(data: Path) -> None:
    """Replace the last snapshot by a named pipe."""
    path = max((data / PARTITION).glob("*.snapshot"))
    path.unlink()
    os.mkfifo(path)


_NINES = "9" * 20
_NAMES = [
    f"{stem}{suffix}"
    for stem in (_NINES, "\N{SUPERSCRIPT TWO}")
    for suffix in (".index", ".log", ".snapshot", ".log.swap", ".txnindex")
]
_REFUSED: dict[str, Change] = {
    **{f"live/{name}": written(f"{PARTITION}/{name}") for name in _NAMES},
    **{f"alone/{name}": without_logs(name) for name in _NAMES},
    **{
        f"{mark}/{name}/{text!r}": written(f"{MARKED}-{mark}/{name}", text)
        for mark in ("delete", "stray")
        for name, text in (
            ("partition.metadata", ""),
            ("partition.metadata", "version: 0\n"),
            ("partition.metadata", "version: 0\ntopic_id: x\n"),
            ("leader-epoch-checkpoint", "0\n1\nx 0\n"),
            (f"{_NINES}.index", ""),
        )
    },
    **{
        f"{name}={value}": property_of(name, value)
        for name, value in (
            ("version", "0"),
            ("version", "2"),
            ("version", None),
            ("node.id", None),
            ("node.id", "x"),
            ("node.id", "-1"),
            ("cluster.id", None),
            ("directory.id", "x"),
            ("directory.id", "AAAAAAAAAAAAAAAAAAAAAQ"),
        )
    },
    "an index that is a broken link": linked_index,
    "a snapshot that is a directory": snapshot_directory,
    "a snapshot that is a pipe": snapshot_pipe,
    "two metadata logs": two_metadata_logs,
    "one directory id twice": another_directory,
    "not a partition": lambda data: (data / "other").mkdir(),
}
_STARTS: dict[str, Change] = {
    "nothing": lambda data: None,  # noqa: ARG005, the directory as it is
    "deleted": written(f"{PARTITION}/{_NINES}.log.deleted"),
    "a digit of another script": written(f"{PARTITION}/\N{ARABIC-INDIC DIGIT ONE}.index"),
    "no partition.metadata in a marked one": lambda data: (
        data / f"{MARKED}-delete" / "partition.metadata"
    ).unlink(),
    "a metadata log": lambda data: (data / "__cluster_metadata-0").mkdir(),
    "an old snapshot that is a directory": lambda data: (
        data / PARTITION / f"{1:020d}.snapshot"
    ).mkdir(),
    "an empty partition": without_logs("leader-epoch-checkpoint"),
}


def refuses(
    data: Path, properties: dict[str, str] | None = None, directories: Sequence[str] = ()
) -> tuple[bool, bool]:
    """Return whether a verification and a prediction report that the broker does not start."""
    directories = directories or sorted(str(path) for path in data.parent.iterdir())
    result = verify(directories, threads=1, config=properties)
    rows = result.findings
    harmful = [row for row in rows if row.harmful]
    assert result.is_harmful is bool(harmful)
    assert all(row.effect for row in harmful)
    conditions = StartConditions(LogConfig(), properties=properties or {})
    predicted = predict_directories(directories, conditions)
    return bool(harmful), predicted.verdict is Verdict.DOES_NOT_START


@pytest.mark.parametrize("case", _REFUSED)
def test_fault_that_prevents_a_broker_start_is_harmful(data: Path, case: str) -> None:
    _REFUSED[case](data)

    assert refuses(data) == (True, True)


def test_unwritable_snapshot_that_loses_records_is_harmful(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    snapshot_directory(data)

    result = verify(data, threads=1)

    harmful = [row for row in result.findings if row.topic is not None and row.harmful]
    assert {row.path for row in harmful} == {str(data / PARTITION)}
    assert all("loses or no longer serves" in (row.effect or "") for row in harmful)


@pytest.mark.parametrize("case", _STARTS)
def test_fault_that_a_broker_tolerates_is_not_harmful(data: Path, case: str) -> None:
    _STARTS[case](data)

    assert refuses(data) == (False, False)


def test_second_metadata_log_of_a_broker_is_harmful(data: Path) -> None:
    (data / "__cluster_metadata-0").mkdir()
    log = data.parent / "metadata" / "__cluster_metadata-0"
    log.mkdir(parents=True)
    shutil.copy(data / "meta.properties", log.parent)
    property_of("directory.id", _ID)(log.parent)

    def rows() -> list[str]:
        result = identity_findings(
            [CheckedRoot.from_directory(DataDirectory(str(data), tolerated=True))], str(log)
        )
        return [row.path for row in result if row.harmful]

    assert rows() == [str(data / "__cluster_metadata-0")]
    property_of("node.id", "9")(log.parent)
    assert rows() == []


def test_metadata_directory_that_is_also_an_input_is_checked_once(data: Path) -> None:
    settings = metadata_elsewhere(data)
    metadata = Path(settings["metadata.log.dir"])
    (data / "__cluster_metadata-0").rmdir()
    shutil.copytree(DUMP / "__cluster_metadata-0", metadata / "__cluster_metadata-0")
    property_of("node.id", "x")(metadata)

    result = verify([str(data), str(metadata)], threads=1, config=settings)

    harmful = [row.path for row in result.findings if row.topic is None and row.harmful]
    assert harmful == [str(metadata / "meta.properties")]


def test_kubernetes_volume_mount_is_one_directory(tmp_path: Path) -> None:
    """The entries of a ConfigMap are links into ``..data``, a link to a folder with a timestamp."""
    mounted, folder = tmp_path / "mounted", tmp_path / "mounted" / "..2026_11_23_07_00_00.1"
    shutil.copytree(DUMP, folder, ignore=shutil.ignore_patterns("[!apm]*-[0-9]", "__*"))
    (mounted / "..data").symlink_to(folder.name)
    for path in folder.iterdir():
        (mounted / path.name).symlink_to(f"..data/{path.name}")

    result = verify(mounted, threads=1)

    # The mounted folder is not a data directory, so its two parents are not of one broker.
    harmful = {row.path: row.found for row in result.findings if row.topic is None and row.harmful}
    named = "the directory name is not a partition name"
    assert harmful == {str(mounted / "..data"): named, str(folder): named}
    assert {os.path.dirname(row.path) for row in result.findings if row.topic is None} == {
        str(mounted)
    }
    assert not verify(folder, threads=1).is_harmful


def metadata_elsewhere(data: Path) -> dict[str, str]:
    """Add a second metadata log, which the settings contain."""
    (data / "__cluster_metadata-0").mkdir()
    directory = data.parent / "metadata"
    directory.mkdir()
    shutil.copy(data / "meta.properties", directory)
    property_of("directory.id", _ID)(directory)
    return {"log.dirs": str(data), "metadata.log.dir": str(directory)}


_SETTINGS: dict[str, tuple[Callable[[Path], dict[str, str]], bool]] = {
    "the node": (lambda _data: {"node.id": "1"}, False),
    "another node": (lambda _data: {"node.id": "9"}, True),
    "another broker": (lambda _data: {"broker.id": "9"}, True),
    "the metadata log elsewhere": (metadata_elsewhere, True),
    "the metadata log that is gone": (
        lambda data: {**metadata_elsewhere(data), "metadata.log.dir": "/not/here"},
        True,
    ),
    "the metadata log elsewhere, data directories not named": (
        lambda data: {"metadata.log.dir": metadata_elsewhere(data)["metadata.log.dir"]},
        True,
    ),
    "the metadata log of another machine": (
        lambda data: {**metadata_elsewhere(data), "log.dirs": "/not/here"},
        False,
    ),
}


@pytest.mark.parametrize("case", _SETTINGS)
def test_settings_of_the_broker_are_compared_with_its_directories(data: Path, case: str) -> None:
    settings, is_refused = _SETTINGS[case]

    assert refuses(data, settings(data), [str(data)]) == (is_refused, is_refused)


def flip_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


#: A change of the metadata directory that is given, the file that is harmful, and what is found.
GIVEN: dict[str, tuple[Change, str, str]] = {
    "of another cluster": (
        property_of("cluster.id", "another"),
        "meta.properties",
        "cluster.id another",
    ),
    "an empty quorum state": (
        written("__cluster_metadata-0/quorum-state"),
        "__cluster_metadata-0/quorum-state",
        "not a JSON object",
    ),
    "a quorum state of NUL": (
        written("__cluster_metadata-0/quorum-state", "\0" * 120),
        "__cluster_metadata-0/quorum-state",
        "not a JSON object",
    ),
    "a damaged log": (
        lambda metadata: flip_middle(min((metadata / "__cluster_metadata-0").glob("*.log"))),
        "__cluster_metadata-0/00000000000000000000.log",
        "bad_crc",
    ),
}


@pytest.mark.parametrize("change", GIVEN)
def test_damage_in_the_given_metadata_directory_is_harmful(
    data: Path, tmp_path: Path, change: str
) -> None:
    metadata = tmp_path / "given"
    shutil.copytree(DUMP / "__cluster_metadata-0", metadata / "__cluster_metadata-0")
    shutil.copy(DUMP / "meta.properties", metadata)
    property_of("directory.id", None)(metadata)
    make, file, found = GIVEN[change]
    intact = verify(data, metadata=metadata)
    make(metadata)

    verified = verify(data, metadata=metadata)

    assert not intact.is_harmful
    (row,) = [row for row in verified.findings if row.topic is None and row.harmful]
    assert row.path == str(metadata / file)
    assert found in (row.found or "")
    assert verified.outcome.exit_code == 1
