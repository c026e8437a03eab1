"""Offsets by topic and partition in a file: Spark's ``startingOffsets``, or lines of CSV.

`kafka-index lookup` writes both, with ``--starting-offsets`` and ``--reset-offsets``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable

from kafka_index.config import parse_integer
from kafka_index.errors import InputError
from kafka_index.layout.names import is_legal_topic
from kafka_index.storage.paths import absolute_path
from kafka_index.stores import store_of
from kafka_index.tables.bounds import EARLIEST

_COLUMNS = 3
_HEADER = ["topic", "partition", "offset"]


def read_offsets_file(path: str) -> dict[str, dict[int, int]]:
    """Return the offsets in a file, by topic and partition.

    It is JSON such as ``{"orders": {"0": 123}}``, or has a line ``orders,0,123`` for each
    partition. Raises `InputError` if it is missing or malformed, or names a partition twice.
    """
    place = absolute_path(path)
    try:
        text = store_of(place).read(place).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError("no such file", path=path) from error
    except UnicodeDecodeError as error:
        raise InputError("not a text file", path=path) from error
    rows = _json_rows(text, path) if text.lstrip().startswith("{") else _csv_rows(text, path)
    offsets: dict[str, dict[int, int]] = {}
    for topic, partition, offset in rows:
        number, value = parse_integer(partition), parse_integer(offset)
        if (
            number is None
            or value is None
            or not is_legal_topic(topic)
            or number < 0
            or value < EARLIEST
        ):
            raise _malformed(path, f"{topic},{partition},{offset}")
        of_topic = offsets.setdefault(topic, {})
        if number in of_topic:
            raise InputError("a partition is named twice", path=path, found=f"{topic}-{number}")
        of_topic[number] = value
    if not offsets:
        raise InputError("no offsets", path=path)
    return offsets


def _json_rows(text: str, path: str) -> list[tuple[str, str, str]]:
    def pairs(found: list[tuple[str, object]]) -> list[tuple[str, object]]:
        return found

    try:
        # Pairs instead of dictionaries, which would drop a partition that is named twice.
        topics = json.loads(text, object_pairs_hook=pairs)
        return [
            (topic, str(partition), str(offset))
            for topic, numbers in topics
            for partition, offset in numbers
        ]
    except (ValueError, TypeError) as error:
        raise _malformed(path, text[:60]) from error


def _csv_rows(text: str, path: str) -> Iterable[tuple[str, str, str]]:
    for row in csv.reader(text.splitlines()):
        if not row or [cell.strip().lower() for cell in row] == _HEADER:
            continue
        if len(row) != _COLUMNS:
            raise _malformed(path, ",".join(row))
        topic, partition, offset = (cell.strip() for cell in row)
        yield topic, partition, offset


def _malformed(path: str, found: str) -> InputError:
    return InputError(
        "not a file of offsets",
        path=path,
        expected='{"topic": {"0": 123}}, or lines of topic,partition,offset',
        found=found,
    )
