"""Queries in JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_index.errors import InputError
from kafka_index.lookup import By
from kafka_index.lookup.queries import text_records
from tests.lookup.test_csv_queries import asked, put

GOOD = '{"topic":"t","partition":0,"offset":5}'


def lines(tmp_path: Path, *texts: str) -> Path:
    return put(tmp_path / "q.jsonl", "".join(f"{text}\n" for text in texts))


def test_a_query_keeps_its_text(tmp_path: Path) -> None:
    odd = '{ "x" : {"a":[1,  2]},"topic":"\\u00e9ü", "partition":0 , "offset": 7,"y":1.50 }'
    path = lines(tmp_path, GOOD, odd)
    assert asked(path) == [("t", 0, 5, GOOD), ("éü", 0, 7, odd)]


@pytest.mark.parametrize("good_lines", [0, 1])
@pytest.mark.parametrize(
    ("text", "topic", "partition", "key"),
    [
        ('{"topic":null,"partition":0,"offset":1}', None, 0, 1),
        ('{"topic":7,"partition":0,"offset":1}', None, 0, 1),
        ('{"partition":0,"offset":1}', None, 0, 1),
        ('{"topic":"t","offset":1}', "t", None, 1),
        ('{"topic":"t","partition":"3","offset":1}', "t", 3, 1),
        ('{"topic":"t","partition":true,"offset":1}', "t", None, 1),
        ('{"topic":"t","partition":0,"offset":"12"}', "t", 0, 12),
        ('{"topic":"t","partition":0,"offset":1.0}', "t", 0, None),
        ('{"topic":"t","partition":0,"offset":99999999999999999999}', "t", 0, None),
        ('{"topic":"t","partition":0,"offset":[1]}', "t", 0, None),
        ('{"topic":"t","partition":0,"offset":null}', "t", 0, None),
        ('{"topic":"t","topic":"u","partition":0,"offset":1}', "u", 0, 1),
        ('{"topic":"\\ud800","partition":0,"offset":1}', None, 0, 1),
        ("{}", None, None, None),
    ],
)
def test_cells_of_any_type_are_no_abort(
    tmp_path: Path, text: str, topic: str | None, partition: int | None, key: int | None,
    good_lines: int,
) -> None:  # fmt: skip
    path = lines(tmp_path, text, *[GOOD] * good_lines, '{"topic":"","partition":1,"offset":2}')
    assert asked(path)[0] == (topic, partition, key, text)
    assert asked(path)[-1][:3] == ("", 1, 2)


def test_empty_lines_and_line_ends_are_no_queries(tmp_path: Path) -> None:
    path = put(tmp_path / "q.json", f"\n  {GOOD}  \r\n\r\n \n{GOOD}")
    assert asked(path) == [("t", 0, 5, GOOD)] * 2


@pytest.mark.parametrize("text", ["", "\n \r\n", "\ufeff"])
def test_a_file_without_queries_is_fine(tmp_path: Path, text: str) -> None:
    assert asked(put(tmp_path / "q.json", text)) == []


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert asked(lines(tmp_path, "\ufeff" + GOOD)) == [("t", 0, 5, GOOD)]


def test_times_and_integers_may_be_mixed(tmp_path: Path) -> None:
    stamps = ['"2024-05-01T00:00:00Z"', "-1", '"17"', '"soon"']
    texts = [f'{{"topic":"t","partition":0,"timestamp":{stamp}}}' for stamp in stamps]
    found = [key for _, _, key, _ in asked(lines(tmp_path, *texts), By.TIMESTAMP)]
    assert found == [1_714_521_600_000, -1, 17, None]
    only_times = asked(lines(tmp_path, texts[0], texts[0]), By.TIMESTAMP)
    assert [key for _, _, key, _ in only_times] == [1_714_521_600_000] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD[:-1], "line 2 is no JSON"),
        (GOOD + GOOD, "line 2 is no JSON: Extra data"),
        ("[1]", "line 2 is no JSON object .*found .1."),
        ("7", "line 2 is no JSON object"),
        ("topic,partition,offset", "line 2 is no JSON"),
        ('{"topic":"t",\n"partition":0,"offset":1}', "line 2 is no JSON"),
        ('{"topic":"a\tb","partition":0,"offset":1}', "line 2 is no JSON"),
    ],
)
def test_lines_that_are_no_objects_are_refused_with_their_number(
    tmp_path: Path, text: str, message: str
) -> None:
    path = lines(tmp_path, GOOD, text, GOOD)
    with pytest.raises(InputError, match=message) as caught:
        asked(path)
    assert caught.value.path == str(path)


def test_an_array_over_several_lines_is_no_json_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "q.json", json.dumps([json.loads(GOOD)], indent=1))
    with pytest.raises(InputError, match="line 1 is no JSON"):
        asked(path)


def test_members_that_no_line_has_are_named(tmp_path: Path) -> None:
    path = lines(tmp_path, '{"topik":"t","partition":0}', '{"partition":1,"offset":1}')
    with pytest.raises(InputError, match=r"no column topic .*found topik, partition, offset"):
        asked(path)


def test_a_member_named_like_one_of_answers_is_refused_in_any_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path, *[GOOD] * 2000, GOOD[:-1] + ',"status":"x"}')
    with pytest.raises(InputError, match="named like those of answers: status"):
        asked(path)
    # Also when the first block is read at once.
    monkeypatch.setattr(text_records, "BLOCK_BYTES", 100)
    with pytest.raises(InputError, match="named like those of answers: status"):
        asked(path)


def test_lines_come_through_blocks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f'{{"topic":"t","partition":0,"offset":{n},"x":"{"é" * n}"}}' for n in range(40)]
    path = lines(tmp_path, *texts)
    whole = asked(path)
    for block_bytes in (1, 7, 100, 1000):
        monkeypatch.setattr(text_records, "BLOCK_BYTES", block_bytes)
        assert asked(path) == whole
