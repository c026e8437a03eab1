"""The output of answers: whole or not at all, and never over something else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_index.commands.lookup.lookup_job import answer_split
from kafka_index.commands.lookup.output import AnswerTarget
from kafka_index.commands.lookup.queries import Queries, open_queries
from kafka_index.core.errors import InputError, KafkaIndexError, PublishError
from kafka_index.core.log.choices import By
from tests.commands.lookup.building import (
    lookups_of,
    make_dump,
    query,
    read_answers,
    run,
    write_queries,
)
from tests.support.timeouts import TIMEOUT_SECONDS

OLD = b"the old answers"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder for outputs, where nothing else may be left."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def queries(tmp_path: Path) -> Queries:
    for number in range(3):
        rows = [query("orders", 0, 10 * number + row) for row in range(10)]
        write_queries(tmp_path / "queries" / f"{number}.csv", rows)
    return open_queries(str(tmp_path / "queries"), By.OFFSET)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def answered(queries: Queries, dump: Path, output: Path) -> Iterator[AnswerTarget]:
    """A target with a part for every split, as Spark's tasks leave it."""
    with (
        AnswerTarget(str(output), queries, overwrite=True) as target,
        lookups_of(dump) as lookups,
    ):
        for split in queries.splits:
            answer_split(split, lookups, target.part_path(split), attempt_id="1")
        yield target


ROWS = {0: 10, 1: 10, 2: 10}


def test_output_is_invisible_before_it_is_published(
    work: Path, queries: Queries, dump: Path
) -> None:
    for name in ("out", "out.csv"):
        with answered(queries, dump, work / name):
            assert not (work / name).exists()
        assert names(work) == []


@pytest.mark.parametrize("rows", [{}, {0: 10, 1: 10}, {0: 10, 1: 9, 2: 10}])
def test_output_with_missing_answers_is_not_published(
    tmp_path: Path, work: Path, dump: Path, rows: dict[int, int]
) -> None:
    for number in range(3):
        queries_path = [query("orders", 0, row) for row in range(10)]
        write_queries(tmp_path / "queries" / f"{number}.parquet", queries_path)
    queries = open_queries(str(tmp_path / "queries"), By.OFFSET)
    with (
        answered(queries, dump, work / "out") as target,
        pytest.raises(PublishError, match="the number of answers differs"),
    ):
        target.publish(rows)
    assert names(work) == []


@pytest.mark.parametrize("name", ["out", "out.csv"])
def test_output_with_a_missing_part_is_not_published(
    work: Path, queries: Queries, dump: Path, name: str
) -> None:
    with answered(queries, dump, work / name) as target:
        os.unlink(target.part_path(queries.splits[1]))
        with pytest.raises(PublishError, match="a part of the answers is missing"):
            target.publish(ROWS)
    assert names(work) == []


def test_leftover_part_of_a_late_attempt_is_not_published(
    work: Path, queries: Queries, dump: Path
) -> None:
    with answered(queries, dump, work / "out") as target:
        late = Path(target.part_path(queries.splits[0]) + ".x.tmp")
        late.write_bytes(b"half a part")
        target.publish(ROWS)
    assert names(work / "out") == ["_SUCCESS", *(f"part-0000{n}-{n}.csv" for n in range(3))]


def test_missing_parent_folders_of_the_output_are_created(
    work: Path, queries: Queries, dump: Path
) -> None:
    with answered(queries, dump, work / "a" / "b" / "out") as target:
        target.publish(ROWS)
    assert len(read_answers(work / "a" / "b" / "out")) == 30


@pytest.mark.parametrize("name", ["out", "out.csv"])
def test_existing_output_is_rejected(work: Path, queries: Queries, name: str) -> None:
    if name == "out":
        (work / name).mkdir()
        (work / name / "part-00000-x.csv").write_bytes(OLD)
    else:
        (work / name).write_bytes(OLD)
    with pytest.raises(InputError, match=r"exists already.*--overwrite"):
        AnswerTarget(str(work / name), queries)
    AnswerTarget(str(work / name), queries, overwrite=True)


def test_empty_output_folder_is_accepted(work: Path, queries: Queries, dump: Path) -> None:
    (work / "out").mkdir()
    with answered(queries, dump, work / "out") as target:
        target.publish(ROWS)
    assert len(read_answers(work / "out")) == 30
    assert names(work) == ["out"]


@pytest.mark.parametrize("way", ["at once", "in steps"])
def test_old_output_folder_is_replaced_atomically(
    work: Path, queries: Queries, dump: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "in steps":
        monkeypatch.setattr("kafka_index.core.output.output.exchange", lambda *_: False)
    (work / "out").mkdir()
    (work / "out" / "part-00099-x.csv").write_bytes(OLD)
    (work / "out" / "_SUCCESS").write_bytes(b"")
    (work / "out" / "._SUCCESS.crc").write_bytes(b"")
    with answered(queries, dump, work / "out") as target:
        target.publish(ROWS)
    assert names(work / "out") == ["_SUCCESS", *(f"part-0000{n}-{n}.csv" for n in range(3))]
    assert names(work) == ["out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_with_foreign_files_is_never_replaced(
    work: Path, queries: Queries, *, overwrite: bool
) -> None:
    (work / "out").mkdir()
    (work / "out" / "thesis.docx").write_bytes(OLD)
    with pytest.raises(InputError):
        AnswerTarget(str(work / "out"), queries, overwrite=overwrite)


def test_output_file_does_not_replace_a_folder_or_vice_versa(work: Path, queries: Queries) -> None:
    (work / "out").write_bytes(OLD)
    (work / "out.csv").mkdir()
    for name, message in (
        ("out", "replace a file with a folder"),
        ("out.csv", "replace a folder with a file"),
    ):
        with pytest.raises(InputError, match=message):
            AnswerTarget(str(work / name), queries, overwrite=True)


def test_output_created_concurrently_is_not_replaced(
    work: Path, queries: Queries, dump: Path
) -> None:
    with (
        AnswerTarget(str(work / "out.csv"), queries) as target,
        lookups_of(dump) as lookups,
    ):
        for split in queries.splits:
            answer_split(split, lookups, target.part_path(split), attempt_id="1")
        (work / "out.csv").write_bytes(OLD)
        with pytest.raises(InputError, match="exists already"):
            target.publish(ROWS)
    assert (work / "out.csv").read_bytes() == OLD


@pytest.mark.parametrize("name", ["out.json", "out.jsonl", "out.csv.gz"])
def test_answers_in_another_format_than_the_queries_or_parquet_are_rejected(
    work: Path, queries: Queries, name: str
) -> None:
    with pytest.raises(
        InputError, match=r"queries, CSV, or in Parquet .*expected \.csv or \.parquet, or a folder"
    ):
        AnswerTarget(str(work / name), queries)


@pytest.mark.parametrize(
    "output", ["queries", "queries/out", "queries/0.csv", ".", "dump/orders-0/x.csv"]
)
def test_answers_that_overlap_an_input_are_rejected(
    tmp_path: Path, queries: Queries, output: str
) -> None:
    make_dump(tmp_path / "dump")
    with pytest.raises(InputError, match=r"the output (is|is inside|contains) the input"):
        AnswerTarget(
            str(tmp_path / output),
            queries,
            inputs=[str(tmp_path / "queries"), str(tmp_path / "dump")],
            overwrite=True,
        )


def test_output_next_to_its_queries_is_accepted(tmp_path: Path, dump: Path) -> None:
    path = write_queries(tmp_path / "q.csv", [query("orders", 0, 5)])
    run(path, tmp_path / "a.csv", dump)
    run(path, tmp_path / "a", dump)


def test_concurrent_run_into_the_same_output_is_rejected(work: Path, queries: Queries) -> None:
    with (
        AnswerTarget(str(work / "out"), queries),
        pytest.raises(PublishError, match="lock"),
        AnswerTarget(str(work / "out"), queries),
    ):
        pass
    assert names(work) == []


def test_unwritable_output_is_rejected(work: Path, queries: Queries) -> None:
    (work / "file").write_bytes(b"")
    with (
        pytest.raises(PublishError, match="cannot write to the output"),
        AnswerTarget(str(work / "file" / "out"), queries),
    ):
        pass


_KILLED = """
import os, signal, sys
from kafka_index.commands.lookup.lookup_job import answer_queries
from kafka_index.commands.lookup.output import AnswerTarget
from kafka_index.commands.lookup.queries import open_queries
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import Resolve
from kafka_index.core.output import output
from kafka_index.core.log.choices import By
from kafka_index.core.query.inventory import collect_inventory
from kafka_index.core.query.lookups import LookupSettings

queries = open_queries(sys.argv[1], By.OFFSET)
settings = LookupSettings(By.OFFSET, Resolve.BATCH)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

with AnswerTarget(sys.argv[3], queries, overwrite=True) as target:
    done = []
    with ThreadEngine(1).start("lookup") as workers:
        inventory = collect_inventory([sys.argv[2]])
        for report in answer_queries(workers, queries, inventory, settings, target):
            done.append(report)
            if sys.argv[4] == "before the end" and report.number == 1:
                die()
    rename, calls = os.rename, []
    def rename_and_die(*paths):
        rename(*paths)
        calls.append(paths)
        if len(calls) == int(sys.argv[4]):
            die()
    output.exchange = lambda *_: False
    os.rename = rename_and_die
    target.publish({report.number: report.rows for report in done})
"""


def kill(queries: Queries, dump: Path, output: Path, when: str) -> None:
    command = [sys.executable, "-c", _KILLED, queries.path, str(dump), str(output), when]
    ended = subprocess.run(
        command, timeout=TIMEOUT_SECONDS, check=False, capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize("name", ["out", "out.csv"])
def test_killed_run_keeps_the_old_output(
    work: Path, queries: Queries, dump: Path, name: str
) -> None:
    old = work / name
    if name == "out":
        old.mkdir()
        old = old / "part-00000-0.csv"
    old.write_bytes(OLD)
    kill(queries, dump, work / name, "before the end")
    assert old.read_bytes() == OLD
    assert len(names(work)) > 1
    with answered(queries, dump, work / name) as target:
        target.publish(ROWS)
    # What the killed run left is gone, too.
    assert names(work) == [name]
    assert len(read_answers(work / name)) == 30


@pytest.mark.parametrize("renames", [1, 2, 3])
def test_run_killed_during_the_folder_swap_loses_no_output(
    work: Path, queries: Queries, dump: Path, renames: int
) -> None:
    (work / "out").mkdir()
    (work / "out" / "part-00000-0.csv").write_bytes(OLD)
    kill(queries, dump, work / "out", str(renames))
    # Between the first two renames there is none; the next run puts the old one back.
    assert (work / "out").exists() == (renames > 1)
    with AnswerTarget(str(work / "out"), queries, overwrite=True):
        assert len(names(work / "out")) == (1 if renames == 1 else 4)
        assert [name for name in names(work) if name.endswith(".old")] == []
    assert names(work) == ["out"]


def test_failed_attempt_leaves_no_part(tmp_path: Path, work: Path, dump: Path) -> None:
    path = write_queries(tmp_path / "q.csv", [query("orders", 0, 5)])
    path.write_text(path.read_text() + 'orders,0,5,"')
    (split,) = open_queries(str(path), By.OFFSET).splits
    with (
        lookups_of(dump) as lookups,
        pytest.raises(KafkaIndexError),
    ):
        answer_split(split, lookups, str(work / "part.csv"), attempt_id="1")
    assert names(work) == []


def test_unwritable_part_is_an_error_with_its_path(
    work: Path, queries: Queries, dump: Path
) -> None:
    part = work / "nowhere" / "part.csv"
    with (
        lookups_of(dump) as lookups,
        pytest.raises(PublishError, match="cannot write the answers") as caught,
    ):
        answer_split(queries.splits[0], lookups, str(part), attempt_id="1")
    assert caught.value.path == str(part)
