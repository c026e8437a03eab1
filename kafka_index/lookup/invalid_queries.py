"""The faults of queries that cannot be answered as they are: row in the file, and reason."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kafka_index.layout.integers import Longs
from kafka_index.lookup.keys import By, Keys, plain_array
from kafka_index.lookup.lookups import LookupSettings
from kafka_index.lookup.query_columns import PARTITION
from kafka_index.lookup.query_files import QueryFormat
from kafka_index.lookup.report import InvalidQuery
from kafka_index.lookup.splits import QueryBatch, QuerySplit
from kafka_index.reading.answers import SpecialTimestamp

_MAX_CELL = 60
_WRONG_KEY = {
    By.OFFSET: "not an integer",
    By.TIMESTAMP: "neither milliseconds nor a time from 1970 on",
}
_MALFORMED = {
    QueryFormat.CSV: "not as many cells as the header has",
    QueryFormat.JSON: "not a JSON object",
}


def invalid_queries(
    batch: QueryBatch, rows: Longs, split: QuerySplit, rows_before: int, settings: LookupSettings
) -> Iterator[InvalidQuery]:
    """Yield the faults of some rows of a batch, which are `Status.INVALID_QUERY`.

    `rows_before` counts the rows of the split before the batch.
    """
    for row in rows.tolist():
        topic = plain_array(batch.topics.slice(row, 1))[0].as_py()
        yield InvalidQuery(
            split.path,
            split.first_row + rows_before + row + 1,
            topic,
            batch.partitions[row].as_py(),
            _reason(batch, row, split, settings, topic),
        )


def _reason(
    batch: QueryBatch, row: int, split: QuerySplit, settings: LookupSettings, topic: str | None
) -> str:
    if batch.malformed is not None and batch.malformed[row]:
        return _MALFORMED[split.format]
    if topic is None:
        return "no topic"
    if not batch.partitions[row].is_valid:
        return _not_a_number(PARTITION, _cell(batch, row, PARTITION), "not an integer")
    if batch.keys.valid is not None and not batch.keys.valid[row]:
        name = split.by.column
        return _not_a_number(name, _cell(batch, row, name), _WRONG_KEY[split.by])
    return _wrong_key(int(batch.keys.values[row]), split.by, settings, batch.keys)


def _wrong_key(value: int, by: By, settings: LookupSettings, keys: Keys) -> str:
    """Return what is wrong with a number."""
    if by is By.OFFSET:
        return f"offset {value} is negative"
    if keys.specials and value >= min(SpecialTimestamp):
        return f"timestamp {value} has no answer at the level of {settings.resolve.value}"
    return f"timestamp {value} is before 1970, and is not one of Kafka's special timestamps"


def _not_a_number(name: str, cell: object, wrong: str) -> str:
    if cell is None:
        return f"no {name}, or it is {wrong}"
    text = str(cell)
    shown = text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}..."
    return f"{name} {shown!r} is {wrong}"


def _cell(batch: QueryBatch, row: int, name: str) -> object:
    """Return a cell as it was read; None where it is empty or not known."""
    if batch.lines is not None:
        return json.loads(batch.lines[row].as_py()).get(name)
    cells = batch.rows if batch.cells is None else batch.cells
    place = cells.schema.get_field_index(name)
    return None if place < 0 else cells.column(place)[row].as_py()
