"""Queries in CSV files."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.errors import InputError
from kafka_index.lookup import By, open_queries, read_piece
from kafka_index.lookup.queries import text_records

HEADER = "topic,partition,offset,note\n"

Asked = tuple[str | None, int | None, int | None, str]


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def asked(path: Path, by: By = By.OFFSET) -> list[Asked]:
    """Topic, partition and key of each query, and its text."""
    rows: list[Asked] = []
    for piece in open_queries(str(path), by).pieces:
        for batch in read_piece(piece):
            keys = batch.keys
            valid = [True] * len(keys) if keys.valid is None else keys.valid.tolist()
            rows += zip(
                batch.topics.to_pylist(),
                batch.partitions.to_pylist(),
                [v if ok else None for v, ok in zip(keys.values.tolist(), valid, strict=True)],
                batch.rows.column("line").to_pylist(),
                strict=True,
            )
    return rows


def test_a_query_keeps_its_text(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER + 't,0,5,"a, ""b"""\nu,1, 7 ,  x  \n')
    assert asked(path) == [
        ("t", 0, 5, 't,0,5,"a, ""b"""'),
        ("u", 1, 7, "u,1, 7 ,  x  "),
    ]


def test_the_columns_may_be_in_any_order(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", "note,offset,topic,partition\nx,5,t,0\n")
    assert asked(path) == [("t", 0, 5, "x,5,t,0")]


def test_cells_that_hold_nothing_sensible_are_no_abort(tmp_path: Path) -> None:
    lines = ["t,0,,", ",0,1,", "t,x,1,", "t,0,99999999999999999999,", "t,99999999999,1,"]
    path = put(tmp_path / "q.csv", HEADER + "\n".join(lines))
    assert asked(path) == [
        ("t", 0, None, lines[0]),
        (None, 0, 1, lines[1]),
        ("t", None, 1, lines[2]),
        ("t", 0, None, lines[3]),
        ("t", 99_999_999_999, 1, lines[4]),
    ]


def test_line_ends_of_any_kind_and_empty_lines_are_no_queries(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", "\r\n" + HEADER + "\n\r\nt,0,1,a\r\n\n\nt,0,2,b")
    assert asked(path) == [("t", 0, 1, "t,0,1,a"), ("t", 0, 2, "t,0,2,b")]


def test_a_record_may_span_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER + 't,0,1,"one\n\ntwo"\r\nt,0,2,"x\n"\n')
    assert asked(path) == [("t", 0, 1, 't,0,1,"one\n\ntwo"'), ("t", 0, 2, 't,0,2,"x\n"')]


def test_a_byte_order_mark_is_not_part_of_a_name(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", b"\xef\xbb\xbf" + HEADER.encode() + b"t,0,1,\n")
    assert asked(path) == [("t", 0, 1, "t,0,1,")]


def test_names_may_be_quoted(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", '"topic","partition","offset","a\nb"\nt,0,1,\n')
    schema = open_queries(str(path), By.OFFSET).schema
    assert schema is not None
    assert schema.names == ["topic", "partition", "offset", "a\nb"]


def test_other_columns_may_share_a_name(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", "topic,partition,offset,x,x\nt,0,1,a,b\n")
    assert asked(path) == [("t", 0, 1, "t,0,1,a,b")]


def test_text_that_is_not_utf8_passes_through(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER.encode() + b"t,0,1,\xe4\n")
    (piece,) = open_queries(str(path), By.OFFSET).pieces
    (batch,) = read_piece(piece)
    assert batch.rows.column("line").cast("large_binary").to_pylist() == [b"t,0,1,\xe4"]


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv.gz", gzip.compress((HEADER + "t,0,1,\n").encode()))
    assert asked(path) == [("t", 0, 1, "t,0,1,")]


def test_a_compressed_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    data = gzip.compress((HEADER + "t,0,1,\n" * 100_000).encode())
    path = put(tmp_path / "q.csv.gz", data[: len(data) // 2])
    with pytest.raises(InputError, match="cannot read the queries"):
        asked(path)


@pytest.mark.parametrize("text", ["", "\n\n", HEADER, HEADER.strip(), HEADER + "\n\r\n\n"])
def test_a_file_without_queries_is_fine(tmp_path: Path, text: str) -> None:
    assert asked(put(tmp_path / "q.csv", text)) == []


def test_empty_files_among_others_have_any_columns(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "")
    put(tmp_path / "b.csv", HEADER + "t,0,1,\n")
    assert asked(tmp_path) == [("t", 0, 1, "t,0,1,")]


def test_times_are_read(tmp_path: Path) -> None:
    text = "topic,partition,timestamp\nt,0,2024-05-01T00:00:00.0001Z\nt,0,17\nt,0,soon\n"
    path = put(tmp_path / "q.csv", text)
    assert [row[2] for row in asked(path, By.TIMESTAMP)] == [1_714_521_600_001, 17, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topic;partition;offset\n", r"no column topic, partition, offset .*found topic;part"),
        ("topic, partition,offset\n", r"no column partition .*found topic, ' partition', offset"),
        ("topic,partition,offset,status\n", "named like those of answers: status"),
        ("topic,topic,partition,offset\n", "more than one column topic"),
        (HEADER + "t,0,1,x\nt,0,1\n", "line 3 has another number of cells .*expected 4, found 3"),
        (HEADER + '"a\nb",0,1,x\n\nt,0,1,x,y\n', "line 5 has another number of cells"),
        (HEADER + 't,0,1,5" pipe\n', "a quote that is never closed in line 2"),
        (HEADER + 't,0,1,5" x 6"\n', "a quote that does not surround a cell in line 2"),
        (HEADER + 't,0,1,"x" y\n', "a quote that does not surround a cell in line 2"),
        (HEADER + 't,0,1,"a \\"b\\" c"\n', "a quote that does not surround a cell in line 2"),
        (HEADER + 't,0,1,x\nt,0,1,"x\n\n', "a quote that is never closed in line 3"),
        (HEADER + "t,0\r,1,x\n", "line 2"),
    ],
)
def test_what_is_no_csv_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = put(tmp_path / "q.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        asked(path)
    assert caught.value.path == str(path)


def test_a_header_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER.encode("utf-16"))
    with pytest.raises(InputError, match="the header is not UTF-8 text"):
        asked(path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("topic,partition,offset\n", "not the columns of .*a.csv: no note"),
        ("note,topic,partition,offset\n", "the columns of .*a.csv in another order"),
    ],
)
def test_files_of_different_columns_are_refused(tmp_path: Path, other: str, message: str) -> None:
    put(tmp_path / "a.csv", HEADER)
    put(tmp_path / "b.csv", other)
    with pytest.raises(InputError, match=message):
        asked(tmp_path)


CELL = st.text(st.sampled_from('ab ,"\n;\\é'), max_size=6)


@given(
    rows=st.lists(st.tuples(CELL, CELL, CELL, CELL), max_size=12),
    block_bytes=st.integers(1, 60),
)
def test_any_cells_come_through_blocks_of_any_size(
    rows: list[tuple[str, str, str, str]], block_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_records, "BLOCK_BYTES", block_bytes)
        check_round_trip(rows)


def check_round_trip(rows: list[tuple[str, str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["topic", "partition", "offset", "note"])
            writer.writerows(rows)
        found = asked(path)
        texts = [cells for *_, line in found for cells in csv.reader(io.StringIO(line, newline=""))]
        assert texts == [list(row) for row in rows]
        assert [topic or "" for topic, *_ in found] == [row[0] for row in rows]


def test_a_file_that_grew_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER + "t,0,1,x\n")
    (piece,) = open_queries(str(path), By.OFFSET).pieces
    put(path, HEADER + "t,0,1,x\n" * 2)
    with pytest.raises(InputError, match="not what it was when the run began"):
        list(read_piece(piece))
