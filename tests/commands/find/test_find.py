"""``find``: which records, in which order, and how they are printed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafka_index
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import OnDamage
from kafka_index.core.query import missing_records
from kafka_index.core.query.matches import SplitMatches, find_matches, match_split
from kafka_index.core.query.read_plan import RecordSplit
from kafka_index.core.query.records import plan_read
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from tests.support.command_line import DUMP, Argument, run_here
from tests.support.record_tables import batch_of, write_partition
from tests.support.segments import PACKERS, batch, control_batch, record

MAY = 1_714_521_600_000


def find(code: int, *arguments: Argument) -> str:
    result = run_here("find", "--input", *arguments)
    assert result.returncode == code, (result.stdout, result.stderr)
    return result.stdout if code == 0 else result.stdout + result.stderr


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def dump() -> list[dict[str, Any]]:
    columns = ("topic", "partition", "offset", "key", "value")
    result: list[dict[str, Any]] = (
        kafka_index.read_records(DUMP, columns=columns).read_all().to_pylist()
    )
    return result


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        (("--key", "order-1006"), lambda row: row["key"] == b"order-1006"),
        (("--key-regex", "^order-1.*6$"), lambda row: _matches(row["key"], b"order-1", b"6")),
        (("--value-contains", "nectar"), lambda row: b"nectar" in (row["value"] or b"")),
        (
            ("--key-regex", "7$", "--value-contains", "hex:666a"),
            lambda row: _matches(row["key"], b"", b"7") and b"fj" in (row["value"] or b""),
        ),
    ],
)
def test_find_returns_the_matching_rows_of_the_table(
    dump: list[dict[str, Any]], options: tuple[str, ...], holds: Any
) -> None:
    actual = rows(find(0, DUMP, *options, "--json"))
    expected = [row for row in dump if holds(row)]
    assert expected
    assert [(row["topic"], row["partition"], row["offset"]) for row in actual] == [
        (row["topic"], row["partition"], row["offset"]) for row in expected
    ]


def _matches(key: bytes | None, start: bytes, end: bytes) -> bool:
    return key is not None and key.startswith(start) and key.endswith(end)


@pytest.mark.parametrize("codec", [0, *PACKERS])
def test_record_is_found_in_any_codec_with_its_headers(tmp_path: Path, codec: int) -> None:
    noise = batch_of(0, [(1000, b"other", b"x")] * 5, codec)
    wanted = batch_of(5, [(1000, b"a", b"1"), (1000, b"k\xff", b"2"), (1000, None, b"3")], codec)
    headers = batch(
        8,
        payload=record(0, 0, b"k\xff", None, ((b"h", b"v"),)),
        record_count=1,
        last_offset_delta=0,
    )
    write_partition(tmp_path, {0: noise + wanted + headers})
    result = rows(find(0, tmp_path, "--key", "hex:6bff", "--json"))
    assert [(row["offset"], row["key"], row["value"]) for row in result] == [
        (6, {"hex": "6bff"}, "2"),
        (8, {"hex": "6bff"}, None),
    ]
    assert result[1]["headers"] == [{"key": "h", "value": "v"}]
    assert result[1]["position_bytes"] == len(noise + wanted)


def test_found_records_are_printed_as_a_table(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch_of(7, [(0, b"k", b"v"), (-1, b"k", None)])}, "a.b-3")
    assert find(0, tmp_path, "--key", "k").splitlines() == [
        "partition  offset  timestamp                 key  value",
        'a.b-3      7       1970-01-01T00:00:00.000Z  "k"  "v"',
        'a.b-3      8       -                         "k"  null',
    ]


def test_find_by_time_uses_record_timestamps(tmp_path: Path) -> None:
    times = [50, 10, 40, 20, -1]
    log = b"".join(batch_of(at, [(time, b"k", b"v")]) for at, time in enumerate(times))
    write_partition(tmp_path, {0: log})
    # A record without a timestamp is before no time.
    for bounds, offsets in (
        (("--from", "ms:20", "--to", "ms:50"), [2, 3]),
        (("--to", "ms:50"), [1, 2, 3]),
        ((), [0, 1, 2, 3, 4]),
    ):
        result = rows(find(0, tmp_path, "--key", "k", *bounds, "--json"))
        assert [row["offset"] for row in result] == offsets


def test_limit_applies_across_splits(tmp_path: Path) -> None:
    for number in range(3):
        log = b"".join(batch_of(at, [(1000, b"k", b"v")] * 3) for at in range(0, 30, 3))
        write_partition(tmp_path, {0: log}, f"t-{number}")
    actual = rows(find(0, tmp_path, "--key", "k", "--limit", 35, "--json"))
    expected = [(number, at) for number in range(3) for at in range(30)][:35]
    assert [(row["partition"], row["offset"]) for row in actual] == expected


def test_limited_search_does_not_read_the_metadata_log(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(missing_records, "find_cluster", lambda *given: read.append(given))
    records = kafka_index.find_records(DUMP, topics="page-views", key_regex=".", limit=2)
    assert records.to_arrow().num_rows == 2
    assert (read, records.missing_offsets.ranges, records.ok) == ([], (), True)


def test_many_matches_are_returned_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = b"".join(batch_of(at, [(1000, b"k", bytes(900))] * 7) for at in range(0, 35_000, 7))
    write_partition(tmp_path, {0: log}, indexed=True)
    monkeypatch.setattr("kafka_index.core.query.matches.MATCHED_BYTES", 1 << 20)
    settings = ReadSettings(
        columns=("offset", "value"),
        on_damage=OnDamage.DROP,
        record_filter=RecordFilter(value_contains=b"\0"),
    )
    plan = plan_read(tmp_path, settings=settings, max_split_bytes=16 << 20)
    assert (
        match_split(plan.splits[0], "test", settings=settings, max_bytes=1 << 20).remainder
        is not None
    )
    with ThreadEngine(2).start("find") as workers:
        listing = list(find_matches(workers, plan.splits, settings, limit=None))
    assert all(sum(one.nbytes for one in matches.batches) < 8 << 20 for matches in listing)
    table = pa.Table.from_batches(one for matches in listing for one in matches.batches)
    assert table["offset"].to_pylist() == list(range(35_000))


OF_K = ReadSettings(
    columns=("offset", "value"),
    on_damage=OnDamage.DROP,
    record_filter=RecordFilter(key=b"k"),
)


def matches_of(split: RecordSplit, max_bytes: int) -> Iterator[SplitMatches]:
    """Search a split for the key k, as often as it is to be resumed."""
    rest: RecordSplit | None = split
    while rest is not None:
        matches = match_split(rest, "test", settings=OF_K, max_bytes=max_bytes)
        yield matches
        rest = matches.remainder


def offsets_of(matches: Iterable[SplitMatches]) -> list[int]:
    return [at for match in matches for rows in match.batches for at in rows["offset"].to_pylist()]


def test_chunk_of_matches_is_bounded(tmp_path: Path) -> None:
    log = b"".join(batch_of(at, [(1000, b"k", bytes(900))] * 7) for at in range(0, 3500, 7))
    write_partition(tmp_path, {0: log})
    (split,) = plan_read(tmp_path, settings=OF_K).splits
    listing = list(matches_of(split, 1 << 20))
    assert all(len(pickle.dumps(matches)) < (1 << 20) + 10_000 for matches in listing)
    assert offsets_of(listing) == list(range(3500))


def test_split_is_resumed_after_its_last_match(tmp_path: Path) -> None:
    segments = {
        start: b"".join(
            batch_of(at, [(1000, b"k", bytes(40_000))]) for at in range(start, start + 100)
        )
        for start in (0, 100)
    }
    write_partition(tmp_path, segments)
    (split,) = plan_read(tmp_path, settings=OF_K).splits
    listing = list(matches_of(split, 1 << 20))
    assert offsets_of(listing) == list(range(200))
    assert split.size_bytes > 8_000_000
    assert listing[-2].remainder is not None
    assert listing[-2].remainder.size_bytes < 3 << 20


def test_record_larger_than_a_chunk_is_found(tmp_path: Path) -> None:
    log = b"".join(batch_of(at, [(1000, b"k", bytes(200_000))]) for at in range(3))
    write_partition(tmp_path, {0: log})
    (split,) = plan_read(tmp_path, settings=OF_K).splits
    matches = next(matches_of(split, 1000))
    assert [len(rows) for rows in matches.batches] == [1]
    assert matches.remainder is not None
    assert matches.remainder.first_offset == 1


def test_find_skips_and_reports_damage(tmp_path: Path) -> None:
    log = batch_of(0, [(1000, b"k", b"v")]) + batch(1, 1, crc=7) + batch_of(2, [(1000, b"k", None)])
    write_partition(tmp_path, {0: log})
    text = find(1, tmp_path, "--key", "k", "--json")
    assert text.count('"key": "k"') == 2
    assert "bad_crc" in text
    # Without a match, it may be what is damaged.
    assert "bad_crc" in find(1, tmp_path, "--key", "absent")


def test_damage_of_a_resumed_split_is_reported_once(tmp_path: Path) -> None:
    def segment(start: int) -> bytes:
        bad = batch(start + 5, 1, crc=7)
        sound = (batch_of(start + at, [(1000, b"k", bytes(200_000))]) for at in range(10))
        return b"".join(bad if at == 5 else one for at, one in enumerate(sound))

    folder = write_partition(tmp_path, {start: segment(start) for start in (0, 10)})
    (split,) = plan_read(tmp_path, settings=OF_K).splits
    listing = list(matches_of(split, 1000))
    assert offsets_of(listing) == [at for at in range(20) if at % 10 != 5]
    reported = [error.path for matches in listing for error in matches.errors]
    assert reported == [str(folder / f"{start:020d}.log") for start in (0, 10)]


def outcome(tmp_path: Path, *arguments: Argument) -> tuple[int, str, dict[str, Any]]:
    """Return exit code, stderr and summary of a search."""
    path = tmp_path / "summary.json"
    result = run_here("find", "--input", tmp_path / "dump", *arguments, "--summary", path)
    return result.returncode, result.stderr, json.loads(path.read_text())


def test_find_without_a_match_succeeds(tmp_path: Path) -> None:
    write_partition(tmp_path / "dump", {0: batch_of(0, [(1000, b"k", b"v")])})
    code, said, summary = outcome(tmp_path, "--key", "absent")
    assert (code, summary["outcome"], summary["error"]) == (0, "done", None)
    assert summary["counts"] == {
        "matches": 0,
        "records_found": 0,
        "partitions": 1,
        "damage": 0,
        "skipped": 0,
    }
    assert said.splitlines() == ["no record matches; searched 70 B in 1 partition"]
    code, _, summary = outcome(tmp_path, "--key", "absent", "--fail-if-none")
    assert (code, summary["outcome"], summary["counts"]["matches"]) == (1, "no_match", 0)
    code, said, summary = outcome(tmp_path, "--key", "k", "--fail-if-none")
    assert (code, summary["outcome"], summary["counts"]["matches"]) == (0, "done", 1)
    assert said.splitlines() == ["1 record matches; searched 70 B in 1 partition"]
    assert outcome(tmp_path, "--key", "absent", "--quiet")[1] == ""
    # A typo is another outcome.
    assert outcome(tmp_path, "--kye", "absent")[2]["outcome"] == "usage"


def test_find_without_a_match_in_a_damaged_log_reports_damage(tmp_path: Path) -> None:
    data = bytearray(b"".join(batch_of(at, [(1000, b"k", b"v")]) for at in range(3)))
    data[100] ^= 1
    write_partition(tmp_path / "dump", {0: bytes(data)})
    for more in ((), ("--fail-if-none",)):
        code, said, summary = outcome(tmp_path, "--key", "absent", *more)
        assert (code, summary["outcome"], summary["counts"]["damage"]) == (1, "damage", 1)
        assert summary["conclusion"] in said
        assert ", except unreadable ranges" in summary["conclusion"]
        assert summary["conclusion"].endswith("; 1 corrupt or unreadable range skipped")
        assert "at byte 70" in said


def test_skipped_partitions_of_a_search_are_reported(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    log = b"".join(batch_of(at, [(MAY + at, b"k", b"v")]) for at in range(3))
    folder = write_partition(dump, {0: log})
    (folder / "00000000000000000007.log.deleted").write_bytes(log)
    (dump / "old-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    (dump / "log-start-offset-checkpoint").write_text("0\n1\ntopic 0 2\n")
    _, said, summary = outcome(tmp_path, "--key", "absent", "--isolation", "read_committed")
    assert "records before the log start offset of 1 partition were not searched" in said
    assert "records of aborted and open transactions were not searched" in said
    assert "skipped 2 entries" in said
    assert "-delete: the partition is marked for deletion" in said
    assert summary["counts"]["skipped"] == 2
    _, said, _ = outcome(tmp_path, "--key", "k", "--limit", 1, "--topics", "t.*")
    assert said.splitlines()[-1].startswith("1 record matches; the search stopped at the limit")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (("--from", "2024-05-02"), "after all records of the input"),
        (("--to", "2024-05-01"), "before the first record of the input"),
        (("--from", MAY + 1, "--to", MAY + 2), "within the times of the input"),
    ],
)
def test_empty_time_range_of_a_search_reports_the_existing_times(
    tmp_path: Path, given: Sequence[Argument], place: str
) -> None:
    log = b"".join(batch_of(at, [(MAY + at, b"k", b"v")]) for at in (0, 5))
    write_partition(tmp_path / "dump", {0: log})
    code, said, _ = outcome(tmp_path, "--key", "k", *given)
    assert code == 0
    assert f"is {place}: the first record is from 2024-05-01T00:00:00.000Z, the latest" in said
    assert "from 2024-05-01T00:00:00.005Z" in said


def test_find_prints_decoded_records_of_internal_topics() -> None:
    text = find(0, DUMP, "--topics", "__cluster_metadata", "--value-contains", "Bootstrap")
    assert '"type"' in text
    assert "hex" not in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "a condition is required"),
        (("--key", "a", "--key-regex", "b"), "are mutually exclusive"),
        (("--key-regex", "("), "not valid in RE2 syntax"),
        (("--key", "hex:0"), "the bytes are malformed"),
        (("--key", "base64:?"), "the bytes are malformed"),
        (("--key", "k", "--from", "soon"), "neither milliseconds nor a time"),
    ],
)
def test_contradictory_conditions_are_rejected(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    write_partition(tmp_path, {0: batch(0)})
    assert reason in find(2, tmp_path, *options)


def test_control_records_are_not_found(tmp_path: Path) -> None:
    marker = control_batch(3, 5, 0, b"\0\0\0\1", b"\0\0\0\0\0\0")
    write_partition(tmp_path, {0: batch(0) + marker})
    assert find(0, tmp_path, "--key-regex", ".") == ""
