"""Every command once over the example dump, and one task on Spark: ``make smoke``.

For a first look after a change; what each command has to do is tested in the other folders.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import DUMP, SETTINGS, Argument, kafka_index, run_here
from tests.support.dumps import index_files
from tests.support.restoring import copy_dump

PARTITION = "payments-0"
#: A record of it.
OFFSET = 1


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One partition of a broker, and the files at the root of its data directory."""
    return copy_dump(tmp_path_factory.mktemp("smoke") / "data", PARTITION)


def run(command: str, *arguments: Argument) -> str:
    result = run_here(command, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_build_writes_the_files_of_the_broker(data: Path, tmp_path: Path) -> None:
    run("build", "--input", data, "--output", tmp_path / "out", "--config", SETTINGS)
    assert index_files(tmp_path / "out") == index_files(data)


@pytest.mark.usefixtures("quick_java")
def test_build_on_spark_writes_the_files_of_the_broker(data: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    result = kafka_index(
        *("build", "--input", data, "--output", tmp_path / "out", "--config", SETTINGS),
        *("--report", report, "--engine", "spark", "--master", "local[1]"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert index_files(tmp_path / "out") == index_files(data)
    segments = len(list((data / PARTITION).glob("*.log")))
    verdict = f'<h1 id="verdict">{segments} segments built; files in {tmp_path / "out"}</h1>'
    assert verdict in report.read_text(encoding="utf-8")


def test_verify_reports_the_build_as_intact(data: Path) -> None:
    run("verify", "--input", data, "--config", SETTINGS)


def test_dump_prints_records(data: Path) -> None:
    log = min((data / PARTITION).glob("*.log"))
    lines = run("dump", "--records", "--json", log).splitlines()
    assert OFFSET in {json.loads(line).get("offset") for line in lines}


def test_single_lookup_prints_an_answer(data: Path) -> None:
    topic, _, partition = PARTITION.rpartition("-")
    run("lookup", "--logs", data, "--topic", topic, "--partition", partition, "--offset", OFFSET)


def test_lookup_answers_a_file_of_queries(data: Path, tmp_path: Path) -> None:
    topic, _, partition = PARTITION.rpartition("-")
    queries, out = tmp_path / "queries.csv", tmp_path / "answers.csv"
    queries.write_text(f"topic,partition,offset\n{topic},{partition},{OFFSET}\n")
    run("lookup", "--logs", data, "--queries", queries, "--by", "offset", "--output", out)
    assert ',"found",' in out.read_text()


def test_export_find_and_import_agree_on_the_records(data: Path, tmp_path: Path) -> None:
    exported, imported = tmp_path / "exported", tmp_path / "imported"
    run("export", "--input", data, "--output", exported)
    run("import", "--input", exported, "--output", imported)
    result = [
        [(row["offset"], row["key"], row["value"]) for row in map(json.loads, lines.splitlines())]
        for lines in (
            run("find", "--input", where, "--key-regex", ".", "--json")
            for where in (data, imported)
        )
    ]
    assert result[0] == result[1] != []


def test_cat_prints_the_last_record(data: Path) -> None:
    topic, _, partition = PARTITION.rpartition("-")
    arguments = ("cat", topic, "--input", data, "-p", partition, "-f", r"%o\n")
    offsets = run(*arguments).splitlines()
    assert run(*arguments, "--tail", "-n", 1).splitlines() == offsets[-1:] != []


def test_metadata_prints_the_topics() -> None:
    assert "payments" in run("metadata", DUMP, "--what", "topics")


def test_predict_reports_a_safe_start(data: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "copy")
    assert "\nsafe" in run("predict", "--input", copy, "--config", SETTINGS)


def test_restored_directory_has_a_safe_start(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    run("restore", "--input", data, "--output", target, "--config", SETTINGS)
    assert "\nsafe" in run("predict", "--input", target)


def test_rewrite_drops_a_key(data: Path, tmp_path: Path) -> None:
    lines = run("find", "--input", data, "--key-regex", ".", "--json").splitlines()
    key = json.loads(lines[0])["key"]
    keys, target = tmp_path / "keys.txt", tmp_path / "rewritten"
    keys.write_text(f"{key}\n")
    run("rewrite", "--input", data, "--output", target, "--drop-keys", keys)
    assert run_here("find", "--input", target, "--key", key, "--fail-if-none").returncode == 1
