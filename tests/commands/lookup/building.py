"""Small dumps, query files of all kinds, and whole runs over them, for the tests of this folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.commands.lookup.lookup_job import answer_queries
from kafka_index.commands.lookup.output import AnswerTarget
from kafka_index.commands.lookup.queries import QueryFormat, open_queries, read_split
from kafka_index.commands.lookup.result import LookupTotals
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import By, Resolve
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.lookups import Lookups, LookupSettings, QueryBatch
from tests.support.segments import batch

DUMP = Path(__file__).parents[3] / "examples" / "dump"
ENDINGS = (".parquet", ".csv", ".json")

P, C, J = QueryFormat.PARQUET, QueryFormat.CSV, QueryFormat.JSON
#: A text that has everything in it that has to be quoted or escaped somewhere.
ODD_TEXT = 'ü \u2028 "quoted", \\ and\r\n\tmore\x01'

Row = dict[str, Any]

#: Two topics, three partitions; "orders-1" starts at offset 100.
PARTITIONS = {"orders-0": (0, 50), "orders-1": (100, 150), "pay.v1-x-7": (0, 20)}


def make_dump(root: Path, partitions: Mapping[str, tuple[int, int]] = PARTITIONS) -> Path:
    """A data directory whose partitions hold these offsets, a batch for each ten, in two segments.

    The timestamp of a record is 1000 and its offset.
    """
    for name, (first, end) in partitions.items():
        middle = first + (end - first) // 20 * 10
        for start, stop in ((first, middle), (middle, end)):
            log = b"".join(batch(at, records=10) for at in range(start, stop, 10))
            path = root / name / f"{start:020d}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(log)
    return root


def query(topic: str | None, partition: int | None, offset: Any, **others: Any) -> Row:
    """A query by offset."""
    return {"topic": topic, "partition": partition, "offset": offset, **others}


def write_queries(path: Path, rows: Sequence[Row], schema: pa.Schema | None = None) -> Path:
    """A file of queries, of the form that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def put(path: Path, content: str | bytes) -> Path:
    """A file with this content."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def query_keys(path: Path, by: By = By.OFFSET) -> list[tuple[str | None, int | None, int | None]]:
    """Topic, partition and key of each query."""
    return [
        query
        for split in open_queries(str(path), by).splits
        for batch in (QueryBatch.from_table(rows, by) for rows in read_split(split))
        for query in zip(
            batch.topics.to_pylist(),
            batch.partitions.to_pylist(),
            batch.keys.to_arrow().to_pylist(),
            strict=True,
        )
    ]


def lookups_of(
    logs: Path, resolve: Resolve = Resolve.BATCH, by: By = By.OFFSET, **listed: Any
) -> Lookups:
    """Lookups in a dump, listed with these options."""
    return Lookups(collect_inventory([str(logs)], **listed), LookupSettings(by, resolve))


def run(
    queries: Path | str,
    output: Path,
    logs: Path | Inventory = DUMP,
    by: By = By.OFFSET,
    *,
    resolve: Resolve | None = None,
    threads: int = 1,
    overwrite: bool = False,
    starting_offsets: bool = False,
) -> LookupTotals:
    """Answer queries as the command does on this machine."""
    opened = open_queries(str(queries), by)
    inventory = logs if isinstance(logs, Inventory) else collect_inventory([str(logs)])
    totals = LookupTotals()
    settings = LookupSettings(by, resolve or by.default_resolve)
    with AnswerTarget(str(output), opened, overwrite=overwrite) as target:
        with ThreadEngine(threads).start("lookup") as workers:
            for report in answer_queries(
                workers, opened, inventory, settings, target, starting_offsets=starting_offsets
            ):
                totals.add(report)
        target.publish(totals.rows_of_split)
    return totals


def convert(
    folder: Path, dump: Path, content: str, source_format: QueryFormat, by: By = By.OFFSET
) -> Path:
    """Write queries, and answer them into Parquet."""
    source = folder / f"q{source_format.endings[0]}"
    source.write_text(content)
    output = folder / "out.parquet"
    run(source, output, dump, by)
    return output


def read_answers(path: Path) -> list[Row]:
    """The rows of an output, a file or a folder, in order; CSV cells are text."""
    if path.is_dir():
        parts = sorted(part for part in path.iterdir() if part.name.startswith("part-"))
        return [row for part in parts for row in read_answers(part)]
    if path.suffix == ".parquet":
        rows: list[Row] = pq.read_table(path).to_pylist()
        return rows
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            return list(csv.DictReader(file))
        return [json.loads(line) for line in file]


def statuses(rows: Iterable[Row]) -> list[str]:
    """The statuses of answers."""
    return [row["status"] for row in rows]


def without_answers(rows: Iterable[Row]) -> list[Row]:
    """The columns that passed through."""
    return [{k: v for k, v in row.items() if k not in ANSWER_SCHEMA.names} for row in rows]
