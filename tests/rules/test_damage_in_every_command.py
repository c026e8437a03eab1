"""Each kind of damage in every command that reads records: exit code, output, summary, page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kafka_index import export_records, find_records, read_records, rewrite_dump
from kafka_index.core.errors import KafkaIndexError
from tests.support.command_line import run_here
from tests.support.damaged_dumps import (
    abort_transaction,
    append_early_batch,
    damage_last_batch,
    damage_middle,
    damage_start,
    garble_cleaner_offsets,
    garble_high_watermarks,
    garble_leader_epochs,
    garble_log_starts,
    leave_intact,
    make_log_a_folder,
    remove_batch,
    remove_last_segment,
    remove_segment,
    remove_segment_of_unknown_topic,
    repeat_last_batch,
    reset_log_starts,
    write_dump,
    write_unknown_magic,
)

#: The commands in the order of the columns below; ``read`` is Python.
COMMANDS = ("verify", "build", "restore", "lookup", "find", "cat", "export", "rewrite", "stats")
PAGES = ("verify", "build", "restore", "lookup", "stats")


class Rule(NamedTuple):
    """A kind of damage, the exit code of each of `COMMANDS`, and what they print.

    `missing` is the number of ranges of missing offsets.
    """

    damage: Callable[[Path], None]
    codes: str
    said: str = ""
    missing: int = 0


LOST = "offsets 12 to 23"
#: A lookup gives the answers of a broker, which skips what is missing; a build leaves a note.
RULES = [
    Rule(leave_intact, "0000 0000 0"),
    Rule(remove_segment, "1010 1111 1", LOST, 1),
    Rule(remove_segment_of_unknown_topic, "1010 0000 0", LOST, 1),
    Rule(remove_batch, "1010 1111 1", "offsets 16 to 19", 1),
    Rule(remove_last_segment, "1010 1111 1", "24 to 35", 1),
    Rule(make_log_a_folder, "1111 1111 1", f"{12:020d}.log", 1),
    Rule(damage_start, "1111 1111 1", "bad_crc"),
    Rule(damage_middle, "1111 1111 1", "bad_crc"),
    Rule(damage_last_batch, "1111 1111 1", "bad_crc"),
    Rule(repeat_last_batch, "1111 1111 1", "overlap"),
    Rule(append_early_batch, "1111 1111 1", "offset_overflow"),
    Rule(abort_transaction, "0000 0000 0"),
    Rule(garble_log_starts, "1111 1111 1", "log-start-offset-checkpoint"),
    Rule(garble_high_watermarks, "1111 1111 1", "replication-offset-checkpoint"),
    Rule(garble_cleaner_offsets, "1111 1111 1", "cleaner-offset-checkpoint"),
    Rule(garble_leader_epochs, "1111 1111 1", "leader-epoch-checkpoint"),
    Rule(reset_log_starts, "0000 0000 0"),
    # A broker keeps and serves the batch, and a consumer stops at it; readers decode it as magic 2.
    Rule(write_unknown_magic, "1010 0000 0", "unknown_magic"),
]
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=[rule.damage.__name__ for rule in RULES])
CELLS = [(rule, at) for rule in RULES for at in range(len(COMMANDS))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dump(tmp_path / "data")
    return tmp_path / "data"


def arguments_of(command: str, folder: Path) -> list[str | Path]:
    output, page = folder / "out", folder / "page.html"
    queries = folder / "queries.csv"
    rows = "".join(f"orders,0,{offset}\n" for offset in range(36))
    queries.write_text(f"topic,partition,offset\n{rows}")
    by_offset = ("--by", "offset", "--resolve", "record")
    return [
        *{
            "cat": ("orders",),
            "find": ("--key", "absent"),
            "lookup": (*by_offset, "--queries", queries, "--output", folder / "answers.csv"),
            "rewrite": ("--drop-where", "offset = 1", "--output", output),
            "stats": ("--sizes",),
            "verify": (),
        }.get(command, ("--output", output)),
        *(("--report", page) if command in PAGES else ()),
    ]


@pytest.mark.parametrize(
    ("rule", "at"), CELLS, ids=[f"{rule.damage.__name__}-{COMMANDS[at]}" for rule, at in CELLS]
)
def test_damage_is_reported_in_exit_code_output_summary_and_page(
    tmp_path: Path, root: Path, rule: Rule, at: int
) -> None:
    rule.damage(root)
    command, summary = COMMANDS[at], tmp_path / "summary.json"
    arguments = [*arguments_of(command, tmp_path), "--input", root, "--summary", summary]

    result = run_here(command, *arguments)

    code = int(rule.codes.replace(" ", "")[at])
    assert result.returncode == code, result.stdout + result.stderr
    ended = json.loads(summary.read_text())
    assert (ended["exit_code"], ended["outcome"]) == (code, "damage" if code else "done")
    if command in PAGES:
        page = (tmp_path / "page.html").read_text()
        assert ('<header class="bad"' in page) is bool(code)
    if command == "lookup" and rule.missing and rule.damage is not remove_last_segment:
        assert "for missing offsets, answered with the next batch" in result.stdout
        assert ended["counts"]["queries_behind_missing_offsets"] > 0
    elif code and command != "restore":
        assert rule.said in result.stdout + result.stderr
    if command in ("find", "cat", "export", "rewrite", "stats"):
        assert ended["missing_offsets"]["count"] == rule.missing


@EVERY_RULE
def test_damage_is_reported_in_results_of_functions(tmp_path: Path, root: Path, rule: Rule) -> None:
    rule.damage(root)
    code = int(rule.codes[-1])
    records = read_records([root], on_damage="drop")
    actual = find_records([root], value_contains="absent")
    for stream in (records, actual):
        stream.to_arrow()
    exported = export_records([root], tmp_path / "exported")
    rewritten = rewrite_dump([root], tmp_path / "rewritten", drop_where="offset = 1")

    for result in (records, actual, exported, rewritten):
        assert (result.outcome.exit_code, result.missing_offsets.count) == (code, rule.missing)
        if code:
            with pytest.raises(KafkaIndexError):
                result.raise_for_damage()
        else:
            result.raise_for_damage()
    if code:
        with pytest.raises(KafkaIndexError, match=re.escape(rule.said)):
            read_records([root]).to_arrow()
    else:
        assert read_records([root]).to_arrow() == records.to_arrow()


def test_aborted_records_are_read_unless_committed_ones_are_requested(root: Path) -> None:
    abort_transaction(root)
    isolation = {
        name: read_records([root], topics="orders", isolation=name).to_arrow()["offset"].to_pylist()
        for name in ("read_uncommitted", "read_committed")
    }
    assert isolation == {"read_uncommitted": [*range(40)], "read_committed": [*range(36)]}


@pytest.mark.parametrize(
    ("offsets", "code"), [("0..12", 0), ("0..13", 1), ("23..30", 1), ("24..", 0)]
)
def test_missing_offsets_outside_of_the_range_are_not_reported(
    root: Path, offsets: str, code: int
) -> None:
    remove_segment(root)
    result = run_here("cat", "orders", "--input", root, "-o", offsets)
    assert (result.returncode, "are missing" in result.stderr) == (code, bool(code))


@pytest.mark.parametrize(("limit", "code"), [(12, 0), (13, 1)])
def test_missing_offsets_after_the_limit_are_not_reported(
    root: Path, limit: int, code: int
) -> None:
    remove_segment(root)
    assert run_here("cat", "orders", "--input", root, "-n", limit).returncode == code
