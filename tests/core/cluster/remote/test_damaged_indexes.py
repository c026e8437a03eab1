"""Records and answers of tiered dumps whose stored indexes are damaged, against the truth.

Every record that a consumer got in ``read_committed`` is read, and no other, whatever the indexes
of the segments hold; a lookup has the broker's answer, or reports that it has none.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kafka_index import read_records
from kafka_index.core.format.records import ABORTED_TXN, field_position
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.tiered.tiered_store import INDEXES_SUFFIX, read_manifest
from kafka_index.core.fs.uris import Layout, TieredOptions
from tests.servers.s3 import S3Server
from tests.support.campaign import combine_cases
from tests.support.command_line import run_here
from tests.support.remote import new_bucket, upload
from tests.support.tiered import Setting, setting

_TOPICS = ("wallet_tx", "wallet-open")
_ROW = ABORTED_TXN.itemsize
_LAYOUTS = ("local", "aiven-plain", "aiven-zstd-enc")

Damage = Callable[[bytes], bytes | None]


def _zeroed(data: bytes) -> bytes:
    return bytes(len(data))


def _random(data: bytes) -> bytes:
    return random.Random(len(data)).randbytes(len(data))


def _empty(_data: bytes) -> bytes:
    return b""


def _removed(_data: bytes) -> None:
    return None


def _without_the_last_entry(data: bytes) -> bytes:
    return data[:-_ROW]


def _cut(data: bytes) -> bytes:
    return data[:-7]


def _bit_of(name: str) -> Damage:
    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        place = field_position(ABORTED_TXN, name) + ABORTED_TXN[name].itemsize - 1
        for at in range(place, len(data), _ROW):
            changed[at] ^= 1
        return bytes(changed)

    return flipped


_DAMAGES: dict[str, Damage] = {
    "zeroed": _zeroed,
    "random": _random,
    "empty": _empty,
    "removed": _removed,
    "without-the-last-entry": _without_the_last_entry,
    "cut": _cut,
    **{f"bit-in-{name}": _bit_of(name) for name in ABORTED_TXN.names or ()},
}


def _copy(name: str, folder: Path) -> Setting:
    target = folder / name
    shutil.copytree(setting(name).path, target)
    return Setting(target)


def _damage_transaction_indexes(at: Setting, damage: Damage) -> int:
    """Damage the transaction indexes of all remote segments; return their number."""
    count = 0
    for key in at.segments():
        name = f"{at.remote}/{key.name}"
        if at.layout is Layout.LOCAL:
            path, start, size = Path(f"{name}.txnindex"), 0, None
            if not path.exists():
                continue
        else:
            path = Path(name + INDEXES_SUFFIX)
            if not Path(f"{name}.rsm-manifest").exists():
                continue
            stored = read_manifest(store_of(name), name).indexes.get(".txnindex")
            if stored is None:
                continue
            start, size = stored.position_bytes, stored.size_bytes
        data = path.read_bytes()
        end = len(data) if size is None else start + size
        changed = damage(data[start:end])
        count += 1
        if changed is None and size is None:
            path.unlink()
        else:
            # An object of Aiven's has all indexes: a shorter one contradicts its manifest.
            path.write_bytes(data[:start] + (changed or b"") + data[end:])
    return count


def _truth(at: Setting) -> list[tuple[str, int, int]]:
    table = pq.read_table(at.path / "truth" / "read_committed.parquet")
    rows = zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    return sorted(row for row in rows if row[0] in _TOPICS)


def _tiered_arguments(at: Setting, remote: str) -> list[str]:
    keys = [part for name, file in at.keys for part in ("--tiered-key", f"{name}={file}")]
    return ["--tiered", remote, *keys, "--topics", "|".join(_TOPICS)]


def _read(at: Setting, remote: str, _out: Path) -> list[tuple[str, int, int]]:
    result = read_records(
        at.data,
        tiered=TieredOptions((remote,), keys=at.keys),
        topics="|".join(_TOPICS),
        columns=("topic", "partition", "offset"),
        isolation="read_committed",
    ).read_all()
    return [tuple(row.values()) for row in result.to_pylist()]


def _marked(at: Setting, remote: str, _out: Path) -> list[tuple[str, int, int]]:
    """The records that are not marked as aborted, below the last stable offset."""
    tiered = TieredOptions((remote,), keys=at.keys)
    columns = ("topic", "partition", "offset", "is_aborted")
    result = read_records(at.data, tiered=tiered, topics="wallet_tx", columns=columns).read_all()
    others = [row for row in _read(at, remote, _out) if row[0] != "wallet_tx"]
    rows = [tuple(row.values()) for row in result.to_pylist() if not row.pop("is_aborted")]
    return [*others, *rows]


def _exported(at: Setting, remote: str, out: Path) -> list[tuple[str, int, int]]:
    result = run_here(
        "export", "--input", at.data, *_tiered_arguments(at, remote), "--output", out,
        "--isolation", "read_committed", "--format", "jsonl",
        "--columns", "offset",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return [
        (
            file.parents[1].name.removeprefix("topic="),
            int(file.parent.name.removeprefix("partition=")),
            json.loads(line)["offset"],
        )
        for file in out.rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]


def _found(at: Setting, remote: str, _out: Path) -> list[tuple[str, int, int]]:
    result = run_here(
        "find", "--input", at.data, *_tiered_arguments(at, remote), "--key-regex", "",
        "--isolation", "read_committed", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    rows = map(json.loads, result.stdout.splitlines())
    actual = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    # No condition selects a record without a key.
    table = pq.read_table(at.path / "truth" / "read_uncommitted.parquet")
    keyless = table.filter(pc.is_null(table["key"]))
    names = ("topic", "partition", "offset")
    rest = set(zip(*(keyless[name].to_pylist() for name in names), strict=True))
    assert rest.isdisjoint(actual)
    return [*actual, *rest.intersection(_truth(at))]


_READERS = (_read, _marked, _exported, _found)


@pytest.mark.parametrize(("damage", "layout"), combine_cases(_DAMAGES, _LAYOUTS))
def test_records_equal_those_of_consumers_with_any_transaction_index(
    tmp_path: Path, layout: str, damage: str
) -> None:
    at = _copy(layout, tmp_path)
    truth = _truth(at)
    assert _damage_transaction_indexes(at, _DAMAGES[damage]) >= 8
    for reader in _READERS:
        result = reader(at, at.remote, tmp_path / f"out-{reader.__name__}")
        assert sorted(result) == truth, reader.__name__


@pytest.mark.parametrize("damage", ["zeroed", "empty", "bit-in-producer_id"])
def test_transaction_indexes_in_a_bucket_do_not_affect_isolation(
    s3: S3Server, tmp_path: Path, damage: str
) -> None:
    at = _copy("aiven-plain", tmp_path)
    truth = _truth(at)
    _damage_transaction_indexes(at, _DAMAGES[damage])
    with new_bucket(s3) as bucket:
        remote = upload(Path(at.remote), f"{bucket}/tier")
        for reader in _READERS:
            result = reader(at, remote, tmp_path / f"out-{reader.__name__}")
            assert sorted(result) == truth, reader.__name__


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_bounded_read_with_damaged_indexes_is_a_slice_of_the_full_read(
    tmp_path: Path, layout: str
) -> None:
    at = _copy(layout, tmp_path)
    truth = _truth(at)
    _damage_transaction_indexes(at, _zeroed)
    tiered = TieredOptions((at.remote,), keys=at.keys)
    for topic, number in sorted({row[:2] for row in truth}):
        committed = [offset for *_, offset in (row for row in truth if row[:2] == (topic, number))]
        for start in range(0, committed[-1], 29):
            actual = read_records(
                at.data,
                tiered=tiered,
                partitions={topic: [number]},
                columns=("offset",),
                isolation="read_committed",
                starting_offsets=start,
                ending_offsets=start + 11,
            ).read_all()
            expected = [offset for offset in committed if start <= offset < start + 11]
            assert actual["offset"].to_pylist() == expected


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_remote_segments_without_log_directory_are_read_committed(
    tmp_path: Path, layout: str
) -> None:
    at = _copy(layout, tmp_path)
    tiered = TieredOptions((at.remote,), keys=at.keys)

    def committed() -> list[dict[str, object]]:
        columns = ("topic", "partition", "offset")
        topics = "|".join(_TOPICS)
        reader = read_records(
            [], tiered=tiered, topics=topics, columns=columns, isolation="read_committed"
        )
        rows: list[dict[str, object]] = reader.read_all().to_pylist()
        return rows

    expected = committed()
    truth = set(_truth(at))
    assert expected
    assert {tuple(row.values()) for row in expected} <= truth
    _damage_transaction_indexes(at, _zeroed)
    assert committed() == expected


@pytest.mark.parametrize(("seed", "layout"), combine_cases(range(3), _LAYOUTS))
def test_answers_with_a_flipped_index_bit_are_right_or_reported(
    tmp_path: Path, layout: str, seed: int
) -> None:
    at = _copy(layout, tmp_path)
    expected = _answers(at, tmp_path / "expected.csv")
    some = random.Random(f"{layout} {seed}")
    for path in _stored_indexes(at):
        data = bytearray(path.read_bytes())
        if data:
            place = some.randrange(8 * len(data))
            data[place // 8] ^= 1 << place % 8
            path.write_bytes(data)
    actual = _answers(at, tmp_path / "found.csv")
    assert len(actual) == len(expected)
    for row, right in zip(actual, expected, strict=True):
        assert row == right or "unreadable" in row.values()
    assert sorted(_read(at, at.remote, tmp_path)) == _truth(at)


def _stored_indexes(at: Setting) -> Iterator[Path]:
    suffixes = (".index", ".timeindex", ".txnindex", ".snapshot", INDEXES_SUFFIX)
    for folder, _, names in os.walk(at.remote):
        for name in sorted(names):
            if name.endswith((*suffixes, ".leader_epoch_checkpoint")):
                yield Path(folder, name)


def _answers(at: Setting, target: Path) -> list[dict[str, str]]:
    """Return the broker's part of the answers; which entry led to them depends on the index."""
    queries = target.with_suffix(".queries.csv")
    asked = at.rows("offsets_for_times.csv.gz")
    lines = [f"{row['topic']},{row['partition']},{row['timestamp']}" for row in asked]
    queries.write_text("\n".join(["topic,partition,timestamp", *lines, ""]))
    keys = [part for name, file in at.keys for part in ("--tiered-key", f"{name}={file}")]
    result = run_here(
        "lookup", "--logs", at.data, "--tiered", at.remote, *keys, "--queries", queries,
        "--by", "timestamp", "--output", target,
    )  # fmt: skip
    assert result.returncode in (0, 1), result.stderr
    with target.open() as file:
        rows = list(csv.DictReader(file))
    return [{name: row[name] for name in row if not name.startswith("entry_")} for row in rows]
