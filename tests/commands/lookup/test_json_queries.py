"""Queries in JSON lines: every line is a query, in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_index.commands.lookup import queries
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import By
from tests.commands.lookup.building import put, query_keys

GOOD = '{"topic":"t","partition":0,"offset":5}'


def lines(tmp_path: Path, *texts: str) -> Path:
    return put(tmp_path / "q.jsonl", "".join(f"{text}\n" for text in texts))


@pytest.mark.parametrize(
    ("text", "topic", "partition", "key"),
    [
        ('{ "x":[1],"topic":"\\u00e9ü", "partition":0 , "offset": 7,"y":1.50 }', "éü", 0, 7),
        ('{"topic":null,"partition":0,"offset":1}', None, 0, 1),
        ('{"topic":7,"partition":0,"offset":1}', "7", 0, 1),
        ('{"partition":0,"offset":1}', None, 0, 1),
        ('{"topic":"t","offset":1}', "t", None, 1),
        ('{"topic":"t","partition":"3","offset":1}', "t", 3, 1),
        ('{"topic":"t","partition":true,"offset":1}', "t", None, 1),
        ('{"topic":"t","partition":0,"offset":"12"}', "t", 0, 12),
        ('{"topic":"t","partition":0,"offset":9007199254740993}', "t", 0, 2**53 + 1),
        ('{"topic":"t","partition":0,"offset":1.5}', "t", 0, None),
        ('{"topic":"t","partition":0,"offset":1.0}', "t", 0, None),
        ('{"topic":"t","partition":0,"offset":99999999999999999999}', "t", 0, None),
        ('{"topic":"t","partition":0,"offset":[1]}', "t", 0, None),
        ('{"topic":"t","topic":"u","partition":0,"offset":1}', "t", 0, 1),
        ('{"topic":"t","partition":0,"offset":1,"x":18446744073709551615}', "t", 0, 1),
        ("{}", None, None, None),
        (f'{{"topic":"t","partition":0,"offset":{"9" * 5000}}}', "t", 0, None),
    ],
)
def test_any_json_object_line_is_a_query(
    tmp_path: Path, text: str, topic: str | None, partition: int | None, key: int | None
) -> None:
    last = '{"topic":"","partition":1,"offset":9007199254740993}'
    path = lines(tmp_path, GOOD, text, last)
    assert query_keys(path) == [("t", 0, 5), (topic, partition, key), ("", 1, 9007199254740993)]


@pytest.mark.parametrize(
    "text",
    [
        GOOD[:-1],
        GOOD + GOOD,
        "topic,partition,offset",
        "[" * 100_000,
        "[{}",
        "{}]}",
        '{"topic":"\\ud800","partition":0,"offset":1}',
        '{"topic":"a\tb","partition":0,"offset":1}',
        GOOD.replace("t", "\xe4"),
    ],
)
def test_malformed_json_line_is_rejected_with_its_number(tmp_path: Path, text: str) -> None:
    path = put(tmp_path / "q.json", f"{GOOD}\n\n{text}\n{GOOD}\n".encode("latin-1"))
    with pytest.raises(InputError, match="line 3 does not parse: ") as caught:
        query_keys(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("text", ["[1]", "5", "null"])
def test_json_line_that_is_not_an_object_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="query 2 is not a JSON object"):
        query_keys(lines(tmp_path, GOOD, text, GOOD))


def test_json_lines_reader_skips_empty_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "q.json", f"\n  {GOOD}  \r\n\r\n \n{GOOD}")
    assert query_keys(path) == [("t", 0, 5)] * 2


@pytest.mark.parametrize("text", ["", "\n \r\n", "\ufeff"])
def test_query_file_without_queries_is_accepted(tmp_path: Path, text: str) -> None:
    assert query_keys(put(tmp_path / "q.json", text)) == []


def test_json_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + GOOD.encode()
    assert query_keys(put(tmp_path / "q.json", text)) == [("t", 0, 5)]


def test_json_times_and_integers_can_be_mixed(tmp_path: Path) -> None:
    stamps = ['"2024-05-01T00:00:00Z"', "-1", '"17"', '"soon"']
    texts = [f'{{"topic":"t","partition":0,"timestamp":{stamp}}}' for stamp in stamps]
    result = [key for _, _, key in query_keys(lines(tmp_path, *texts), By.TIMESTAMP)]
    assert result == [1_714_521_600_000, -1, 17, None]


def test_json_array_over_several_lines_is_rejected(tmp_path: Path) -> None:
    path = put(tmp_path / "q.json", json.dumps([json.loads(GOOD)], indent=1))
    with pytest.raises(InputError, match="line 1 does not parse"):
        query_keys(path)


def test_missing_json_members_are_reported(tmp_path: Path) -> None:
    path = lines(tmp_path, '{"topik":"t","partition":0}', '{"partition":1,"offset":1}')
    with pytest.raises(InputError, match=r"no column topic .*found topik, partition, offset"):
        query_keys(path)


def test_json_member_named_like_an_answer_column_is_rejected_in_any_line(tmp_path: Path) -> None:
    path = lines(tmp_path, *[GOOD] * 2000, GOOD[:-1] + ',"status":"x"}')
    with pytest.raises(InputError, match="names of answer columns: status"):
        query_keys(path)


def test_json_lines_are_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_BATCH_TEXT_BYTES", 0)
    monkeypatch.setattr(queries, "_MIN_TEXT_ROWS", 7)
    texts = [f'{{"topic":"t","partition":0,"offset":{n},"x":"{"é" * n}"}}' for n in range(40)]
    assert query_keys(lines(tmp_path, *texts)) == [("t", 0, n) for n in range(40)]


def test_json_line_above_the_block_size_is_rejected(tmp_path: Path) -> None:
    path = put(tmp_path / "q.json", GOOD + "\n" + GOOD[:-1] + f',"x":"{"x" * (33 << 20)}"}}')
    with pytest.raises(InputError, match="maximum_object_size"):
        query_keys(path)
