"""Claims of commands about all their input are true of the part that they looked at."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kafka_index
from tests.support.child_processes import enforce_permissions
from tests.support.command_line import DUMP, Argument, copy_partitions, run_here
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import write_schema_next_to
from tests.support.restoring import copy_dump

COMMANDS: dict[str, tuple[Argument, ...]] = {
    "build": ("--output", "OUT"),
    "lookup": ("--queries", "QUERIES", "--output", "OUT", "--by", "offset"),
    "find": ("--key", "k"),
    "verify": (),
    "restore": ("--output", "OUT", "--new-topic-ids"),
    "export": ("--output", "OUT"),
    "rewrite": ("--output", "OUT", "--drop-keys", "KEYS"),
    "schemas": ("--schemas", "SCHEMA"),
}
#: Commands that look at all they are given, or say so: with another question, where one is asked.
LOOKING: dict[str, tuple[Argument, ...]] = {
    **COMMANDS,
    "find none": ("--key", "absent"),
    "rewrite some": ("--output", "OUT", "--drop-where", "offset < 5", "--allow-revive"),
    "verify copies": ("--against", DUMP),
    "predict": (),
}
#: What is said only of what was looked at.
CLAIMS = re.compile(
    r"(nothing|no record|no harmful|all that|every log|records? lost|dropped|^safe).*", re.MULTILINE
)
#: The partition that is spoiled; it lies beside a sound one.
SPOILED = "audit.trail-0"


def run(command: str, data: Path, folder: Path, *more: Argument) -> tuple[int, str]:
    folder.mkdir(exist_ok=True)
    (folder / "KEYS").write_text("absent\n")
    (folder / "QUERIES.csv").write_text(
        "topic,partition,offset\npayments,0,1\naudit.trail,0,2000\n"
    )
    names = {"OUT": folder / "out", "KEYS": folder / "KEYS", "QUERIES": folder / "QUERIES.csv"}
    names["SCHEMA"] = write_schema_next_to(folder / "out")
    arguments = [names.get(str(each), each) for each in LOOKING[command]]
    flag = "--logs" if command == "lookup" else "--input"
    result = run_here(command.partition(" ")[0], flag, data, *arguments, *more)
    return result.returncode, result.stdout + result.stderr


def _second_log(data: Path) -> Path:
    return sorted((data / SPOILED).glob("*.log"))[1]


def _damage(data: Path) -> None:
    log = _second_log(data)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def _mark_for_deletion(data: Path) -> None:
    (data / SPOILED).rename(data / f"{SPOILED}.0123456789abcdef0123456789abcdef-delete")


#: What is done to the partition, the exit code, and what names it.
SPOILING: dict[str, tuple[Callable[[Path], object], int | None, str]] = {
    "log unreadable": (lambda data: _second_log(data).chmod(0), 3, r"1475\.log: cannot open"),
    "folder unreadable": (
        lambda data: (data / SPOILED).chmod(0),
        3,
        r"audit\.trail-0: cannot read",
    ),
    "damaged": (_damage, 1, r"1475\.log: |audit\.trail-0: offsets"),
    "marked for deletion": (_mark_for_deletion, None, "skipped 1 entry|-delete"),
    "filtered": (lambda _: None, None, "match 'payments'"),
}


@pytest.mark.parametrize("how", SPOILING)
@pytest.mark.parametrize("command", LOOKING)
def test_conclusion_claims_only_the_files_that_were_read(
    command: str, how: str, tmp_path: Path
) -> None:
    spoil, code, named = SPOILING[how]
    data = copy_dump(tmp_path / "data", "payments-0", SPOILED)
    spoil(data)
    if how == "filtered" and command == "predict":
        pytest.skip("it has no filter")
    more = ("--topics", "payments") if how == "filtered" else ()
    with enforce_permissions():
        found, text = run(command, data, tmp_path / "run", *more)
    if (data / SPOILED).exists():
        (data / SPOILED).chmod(0o755)

    if how == "damaged" and command in ("verify copies", "lookup"):
        # They do not verify checksums, and one of them says so.
        assert command == "lookup" or "equal damage in both copies is not detected" in text
        return
    assert code in (None, found), text
    if code is not None or CLAIMS.search(text):
        assert re.search(named, text), text
    if code == 3:
        assert not re.search(r"nothing harmful|^safe|nothing lost", text), text


@pytest.mark.parametrize("command", COMMANDS)
def test_topics_that_match_nothing_are_wrong_usage_with_near_names(
    command: str, tmp_path: Path
) -> None:
    code, text = run(command, DUMP, tmp_path / "run", "--topics", "paymnets")
    assert code == 2, text
    assert "no topic matches 'paymnets' (the full name must match)" in text
    assert "did you mean payments?" in text
    assert not (tmp_path / "run" / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_directory_that_a_broker_would_not_load_is_reported(command: str, tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    (data / "old-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    _, text = run(command, data, tmp_path / "run")
    assert "skipped 1 entry" in text
    assert "the partition is marked for deletion" in text


@pytest.mark.parametrize("command", ["find", "export", "lookup"])
def test_segments_missing_according_to_checkpoints_are_reported(
    command: str, tmp_path: Path
) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    first = min((data / "payments-0").glob("*.log"))
    first.unlink()
    (data / "log-start-offset-checkpoint").write_text("0\n1\npayments 0 0\n")
    _, text = run(command, data, tmp_path / "run")
    assert "in tiered storage (--tiered)" in text
    (data / "log-start-offset-checkpoint").unlink()
    _, text = run(command, data, tmp_path / "again")
    assert "(--tiered)" not in text


def test_verify_conclusion_names_its_scope() -> None:
    result = run_here("verify", "--input", DUMP, "--topics", "payments", "--fast")
    line = "nothing harmful was found in 2 partitions of the topics that match 'payments'"
    assert line in result.stdout
    assert "and detects neither wrong checksums nor changes inside records" in result.stdout


def test_restore_of_some_topics_does_not_claim_completeness(tmp_path: Path) -> None:
    arguments = ("--input", DUMP, "--new-topic-ids", "--output")
    result = run_here("restore", *arguments, tmp_path / "some", "--topics", "payments")
    assert "No loss was found" not in result.stdout
    assert "topics that do not match 'payments' were not read" in result.stdout


def test_restore_with_a_skipped_entry_does_not_claim_completeness(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    os.mkfifo(data / "payments-0" / f"{99999:020d}.log")
    arguments = ("--input", data, "--new-topic-ids", "--output", tmp_path / "out")
    result = run_here("restore", *arguments, "--report", tmp_path / "page.html")
    assert result.returncode == 1, result.stderr
    for text in (result.stdout, (tmp_path / "page.html.runbook.txt").read_text()):
        assert "No loss was found" not in text
        assert "entries of the input that a broker does not load: 1" in text
    page = (tmp_path / "page.html").read_text()
    for text in (result.stdout, page):
        assert "nothing lost in the files that could be read" in text


def test_rewrite_of_a_damaged_log_without_a_match_reports_damage(tmp_path: Path) -> None:
    data = bytearray(b"".join(batch_of(at, [(1000, b"k", b"v")]) for at in range(3)))
    data[100] ^= 1
    write_partition(tmp_path / "data", {0: bytes(data)})
    write_partition(tmp_path / "data", {0: batch_of(0, [(1000, b"k", b"v")])}, "other-0")
    code, text = run("rewrite", tmp_path / "data", tmp_path / "run")
    assert code == 1
    assert "no record matches in the readable partitions, and 1 partition cannot be read" in text
    code, text = run("rewrite", tmp_path / "data" / "other-0", tmp_path / "run")
    assert code == 2
    assert "no record matches, so the output would be a copy" in text


@pytest.mark.parametrize(
    ("more", "code", "severity", "text"),
    [
        ((), 0, "notable", "2 queries: 1 found, 1 invalid_query; answers in "),
        (
            ("--fail-on", "invalid_query"),
            1,
            "bad",
            "2 queries: 1 found, 1 invalid_query; answers in ",
        ),
    ],
)
def test_page_of_a_malformed_query_agrees_with_the_exit_code(
    tmp_path: Path, more: tuple[str, ...], code: int, severity: str, text: str
) -> None:
    queries, page = tmp_path / "queries.csv", tmp_path / "page.html"
    queries.write_text("topic,partition,offset\npayments,0,5\npayments,0,x\n")
    output = ("--output", tmp_path / "answers.csv", "--report", page)

    result = run_here(
        "lookup", "--input", DUMP, "--queries", queries, "--by", "offset", *output, *more
    )

    assert result.returncode == code, result.stderr
    actual = page.read_text()
    assert f'<header class="{severity}">' in actual
    assert f'<h1 id="verdict">{text}' in actual
    assert ("; 1 query is invalid_query (--fail-on)</h1>" in actual) == bool(code)


@pytest.mark.parametrize("fault", ["unread", "corrupt"])
def test_lookup_terminal_report_and_page_agree_on_a_fault(tmp_path: Path, fault: str) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    if fault == "unread":
        os.mkfifo(data / "payments-0" / f"{10**6:020d}.log")
    else:
        log = min((data / "payments-0").glob("*.log"))
        log.write_bytes(b"\xff" * 500 + log.read_bytes()[500:])
    rows = [{"topic": "payments", "partition": 0, "offset": 5}]
    queries, page, summary = (tmp_path / name for name in ("q.csv", "page.html", "summary"))
    queries.write_text("topic,partition,offset\npayments,0,5\n")
    output = ("--output", tmp_path / "answers.csv", "--report", page, "--summary", summary)

    completed = run_here("lookup", "--input", data, "--queries", queries, "--by", "offset", *output)
    result = kafka_index.lookup_offsets(data, rows)

    ended = json.loads(summary.read_text())
    assert completed.returncode == ended["exit_code"] == result.outcome.exit_code == 1
    assert ended["conclusion"] in completed.stdout
    assert '<header class="bad">' in page.read_text()
    assert html.escape(ended["conclusion"])[:40] in page.read_text()
    place = f"; answers in {tmp_path / 'answers.csv'}"
    assert ended["conclusion"].replace(place, "") == result.conclusion.text
    assert repr(result).startswith(f"LookupResult: {result.headline}")
