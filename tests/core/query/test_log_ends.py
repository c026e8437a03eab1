"""Every reader delivers what is sound of a damaged log, names the damage, and ends with 1.

Compared with a plain walk over the bytes (`tests.support.partition_model`): the batches that are
delivered, and the first place of damage.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.core.errors import CorruptLogError
from kafka_index.core.log.choices import OnDamage
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.records import plan_read
from kafka_index.core.query.settings import ReadSettings
from tests.servers.s3 import S3Server
from tests.support.campaign import sample_size
from tests.support.command_line import json_rows, run_here
from tests.support.damage import damage
from tests.support.partition_model import ExpectedRecords, expected_read
from tests.support.random_entries import Choices
from tests.support.record_tables import batch_of, write_partition
from tests.support.remote import new_bucket, upload
from tests.support.segments import GZIP, INT32_MAX, PACKERS, message

BATCHES, RECORDS = 60, 5
LOG = f"topic-0/{0:020d}.log"


class Case(NamedTuple):
    """A log of one segment; whether it is damaged."""

    data: bytes
    is_damaged: bool = True


def sound_batches() -> list[bytes]:
    return [
        batch_of(
            RECORDS * number,
            [(1000 + number, b"key", bytes([number]) * 150) for _ in range(RECORDS)],
            codec=number % 5,
        )
        for number in range(BATCHES)
    ]


def _flip(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def _cases() -> dict[str, Case]:
    pieces = sound_batches()
    whole = b"".join(pieces)
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    last = starts[BATCHES - 1]
    length_at, offset_at = 8, 0
    huge = struct.pack(">i", INT32_MAX)
    return {
        "sound": Case(whole, is_damaged=False),
        "torn in its records": Case(whole[:-7], is_damaged=False),
        "torn in its header": Case(whole[: last + 20], is_damaged=False),
        "torn in its offset": Case(whole[: last + 5], is_damaged=False),
        "zeros of preallocation": Case(whole + bytes(5000), is_damaged=False),
        "a bit, and a cut after it": Case(_flip(whole, starts[5] + 70)[: starts[6] + 48]),
        "a bit of the last batch": Case(_flip(whole, len(whole) - 3)),
        "a huge length in the middle": Case(
            whole[: starts[20] + length_at] + huge + whole[starts[20] + length_at + 4 :]
        ),
        "a huge length at the end": Case(whole[: last + length_at] + huge + whole[last + 12 :]),
        "a bit of the last length": Case(_flip(whole, last + length_at + 2, 5)),
        "a bit of a length, and a cut after it": Case(
            _flip(whole, starts[7] + length_at + 1, 4)[: starts[8] + 40]
        ),
        "garbage": Case(random.Random(5).randbytes(4000)),
        "garbage at the end": Case(whole + random.Random(6).randbytes(300)),
        "few bytes of garbage": Case(whole + b"\x07" * 9),
        "zeros, and a batch after them": Case(whole[: starts[9]] + bytes(999) + whole[starts[9] :]),
        "a batch twice": Case(whole[: starts[31]] + pieces[30] + whole[starts[31] :]),
        "the last batch twice": Case(whole + pieces[-1]),
        "an offset that jumps": Case(_flip(whole, starts[20] + offset_at + 6)),
        "an offset that goes back": Case(_flip(whole, starts[40] + offset_at + 7, 6)),
        "an offset that overlaps": Case(_flip(whole, starts[41] + offset_at + 7, 2)),
        "a batch is missing": Case(whole[: starts[11]] + whole[starts[12] :], is_damaged=False),
    }


CASES = _cases()


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=[False, True], ids=["without indexes", "indexed"])
def dump(request: pytest.FixtureRequest, case: Case, tmp_path: Path) -> Path:
    """The log; indexes are of before the damage."""
    root = tmp_path / "in"
    write_partition(root, {0: b"".join(sound_batches())}, indexed=request.param)
    (root / LOG).write_bytes(case.data)
    return root


def expected_of(case: Case) -> ExpectedRecords:
    result = expected_read(case.data, 0)
    assert bool(result.damage) == case.is_damaged
    return result


def read(root: Path | str, **options: Any) -> tuple[list[int], list[int]]:
    """Offsets, and positions of damage."""
    table = kafka_index.read_records(
        root, columns=("offset", "position_bytes"), on_damage="permissive", **options
    ).read_all()
    rows = table.to_pylist()
    return (
        [row["offset"] for row in rows if row["_corrupt_record"] is None],
        [row["position_bytes"] for row in rows if row["_corrupt_record"] is not None],
    )


def exported(out: Path) -> list[int]:
    files = sorted(out.rglob("*.parquet")) + sorted(out.rglob("*.jsonl"))
    offsets: list[int] = []
    for path in files:
        if path.suffix == ".parquet":
            offsets += pq.ParquetFile(path).read(["offset"]).column("offset").to_pylist()
        else:
            offsets += [json.loads(line)["offset"] for line in path.read_text().splitlines()]
    return offsets


def test_read_records_returns_intact_records(dump: Path, case: Case) -> None:
    expected = expected_of(case)
    assert read(dump) == (expected.offsets, expected.damage)


def test_fail_fast_read_reports_the_first_damage(dump: Path, case: Case) -> None:
    expected = expected_of(case)
    reader = kafka_index.read_records(dump, columns=("offset",))
    if not case.is_damaged:
        assert reader.read_all().column("offset").to_pylist() == expected.offsets
        return
    with pytest.raises(CorruptLogError) as raised:
        reader.read_all()
    assert raised.value.position_bytes == expected.damage[0]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_export_writes_intact_records_and_reports_damage(
    dump: Path, case: Case, tmp_path: Path, form: str
) -> None:
    expected, report = expected_of(case), tmp_path / "report.json"
    options = ("--input", dump, "--output", tmp_path / "out", "--report", report, "--format", form)
    for run in range(2):
        result = run_here("export", *options)
        assert result.returncode == int(case.is_damaged), (result.stdout, result.stderr)
        assert exported(tmp_path / "out") == expected.offsets
        (row,) = [json.loads(line) for line in report.read_text().splitlines()]
        if case.is_damaged:
            assert (row["status"], row["position_bytes"]) == ("damaged", expected.damage[0])
            assert row["reason"]
        else:
            assert row["status"] == ("unchanged" if run else "exported")


def test_damage_after_an_export_is_reported(dump: Path, case: Case, tmp_path: Path) -> None:
    (dump / LOG).write_bytes(CASES["sound"].data)
    options = ("--input", dump, "--output", tmp_path / "out")
    assert run_here("export", *options).returncode == 0
    before = exported(tmp_path / "out")
    (dump / LOG).write_bytes(case.data)
    run_here("export", *options)
    assert exported(tmp_path / "out") == before


def test_find_returns_intact_records(dump: Path, case: Case) -> None:
    expected = expected_of(case)
    result = run_here("find", "--input", dump, "--key", "key", "--json", "--values", "none")
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == expected.offsets
    assert [f"at byte {position}:" in result.stderr for position in expected.damage] == (
        [True] * len(expected.damage)
    )
    assert (result.returncode == 1) == case.is_damaged


def test_dump_prints_records_up_to_the_damage(dump: Path, case: Case) -> None:
    expected = expected_of(case)
    torn = len(case.data) > expected.end_bytes and any(case.data[expected.end_bytes :])
    rows = json_rows("--records", dump / LOG, code=int(case.is_damaged or torn))
    assert [row["offset"] for row in rows] == expected.offsets[: len(rows)]
    assert len(rows) == len(expected.offsets) or case.is_damaged


def test_verify_reports_the_same_logs_as_harmful(dump: Path, case: Case, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run_here("verify", "--input", dump, "--report", report)
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    (log,) = [row for row in rows if row["kind"] == "log"]
    # What is missing is damage to a verification only.
    assert log["harmful"] == (case.is_damaged or log["class"] == "gap")


@pytest.mark.parametrize("split_bytes", [3000, 20_000])
def test_splits_return_each_offset_once(dump: Path, case: Case, split_bytes: int) -> None:
    expected = expected_of(case)
    settings = ReadSettings(columns=("offset",), on_damage=OnDamage.DROP)
    damaged: list[CorruptLogError] = []
    plan = plan_read(dump, settings=settings, max_split_bytes=split_bytes)
    offsets = [
        offset
        for split in plan.splits
        for rows in RecordReader(split, plan.settings, on_skipped=damaged.append)
        for offset in rows.column("offset").to_pylist()
    ]
    assert offsets == sorted(set(offsets))
    assert bool(damaged) == case.is_damaged
    if not case.is_damaged:
        assert offsets == expected.offsets


def test_bounded_read_reports_damage_within_its_bounds(dump: Path, case: Case) -> None:
    expected = expected_of(case)
    for start, end in ((0, 300), (30, 299), (101, 152)):
        offsets, damage = read(dump, starting_offsets=start, ending_offsets=end)
        wanted = [offset for offset in expected.offsets if start <= offset < end]
        assert offsets == sorted(set(offsets))
        if offsets != wanted:
            # Where the bounds are is looked up in indexes, which damage may mislead.
            assert damage


def test_committed_reads_name_the_damage_that_hides_the_last_stable_offset(
    dump: Path, case: Case
) -> None:
    expected = expected_of(case)
    offsets, damage = read(dump, isolation="read_committed")
    assert offsets == expected.offsets[: len(offsets)]
    assert bool(damage) == case.is_damaged
    first = expected.first_damaged_offset
    end = BATCHES * RECORDS if first is None else min(first, BATCHES * RECORDS)
    before = [offset for offset in expected.offsets if offset < end]
    assert offsets[: len(before)] == before


@pytest.mark.parametrize("name", list(CASES))
def test_remote_logs_have_the_same_end_as_local_ones(
    name: str, tmp_path: Path, s3: S3Server
) -> None:
    case = CASES[name]
    write_partition(tmp_path / "in", {0: case.data})
    with new_bucket(s3) as bucket:
        remote = upload(tmp_path / "in", f"{bucket}/in")
        expected = expected_of(case)
        assert read(remote) == (expected.offsets, expected.damage)
        result = run_here("export", "--input", remote, "--output", tmp_path / "out")
        assert result.returncode == int(case.is_damaged)
        assert exported(tmp_path / "out") == expected.offsets


def test_random_damage_is_always_reported(tmp_path: Path) -> None:
    folder = write_partition(tmp_path / "in", {0: b""})
    damaged = 0
    for seed in range(sample_size(2000, one_in=10)):
        drawing = random.Random(seed)
        pieces = sound_batches()[: drawing.randrange(1, BATCHES)]
        for _ in range(drawing.choice((1, 1, 2))):
            damage(Choices(drawing.randbytes(40)), pieces, forging=False)
        data = b"".join(pieces)
        (folder / f"{0:020d}.log").write_bytes(data)
        expected = expected_read(data, 0)
        damaged += bool(expected.damage)
        assert read(tmp_path / "in") == (expected.offsets, expected.damage), seed
    assert damaged


@pytest.mark.parametrize("magic", [0, 1])
def test_message_with_a_wrong_checksum_in_a_compressed_one_is_damage(
    tmp_path: Path, magic: int
) -> None:
    first = 0 if magic else 2
    inner = b"".join(
        message(first + at, magic, 1000, b"v", b"key", crc=7 if at == 1 else None)
        for at in range(3)
    )
    pieces = [
        message(1, magic, 1000, b"v", b"key"),
        message(4, magic, 1000, PACKERS[GZIP](inner), attributes=GZIP),
        message(5, magic, 1000, b"v", b"key"),
    ]
    dump = tmp_path / "in"
    write_partition(dump, {1: b"".join(pieces)})
    log = dump / "topic-0" / f"{1:020d}.log"
    at = len(pieces[0])
    assert read(dump) == ([1, 2, 5], [at])
    assert read(dump, verify_crc=False) == ([1, 2, 3, 4, 5], [])
    rows = json_rows("--records", log, code=1)
    assert [row["offset"] for row in rows] == [1, 2, 5]
    assert run_here("export", "--input", dump, "--output", tmp_path / "out").returncode == 1
    assert exported(tmp_path / "out") == [1, 2, 5]
    report = tmp_path / "report.json"
    assert run_here("verify", "--input", dump, "--report", report).returncode == 1
    (found,) = [
        row for row in map(json.loads, report.read_text().splitlines()) if row["kind"] == "log"
    ]
    assert (found["class"], found["harmful"], found["position_bytes"]) == ("corrupt", True, at)
    assert "message 2 of 3 in a compressed message has a wrong checksum" in found["found"]
    result = run_here(
        "rewrite", "--input", dump, "--output", tmp_path / "kept", "--drop-where", "key = 'x'"
    )
    assert result.returncode == 1
    assert "wrong checksum" in result.stderr + result.stdout


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment with a batch whose length leads nowhere."""
    batches = [batch_of(at, [(1000, None, bytes(5000))]) for at in range(BATCHES)]
    folder = write_partition(tmp_path, {0: b"".join(batches)}, indexed=True)
    log = folder / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    size = len(batches[0])
    data[30 * size + 8 : 30 * size + 12] = (7).to_bytes(4, "big")
    log.write_bytes(data)
    return tmp_path


def offsets_of(plan: ReadPlan) -> list[int]:
    return [
        offset
        for split in plan.splits
        for rows in RecordReader(split, plan.settings)
        for offset in rows.column("offset").to_pylist()
    ]


def test_skipped_damage_reduces_the_number_of_splits(segment: Path) -> None:
    settings = ReadSettings(columns=("offset",), on_damage=OnDamage.DROP)
    plan = plan_read(segment, settings=settings, max_split_bytes=20_000)
    assert len(plan.splits) > 5
    result = offsets_of(plan)
    assert result == sorted(set(result))
    assert result[:30] == list(range(30))
    assert result[-1] == BATCHES - 1


def test_plan_ends_at_the_damage_that_ends_the_read(segment: Path) -> None:
    with pytest.raises(CorruptLogError):
        plan_read(segment, settings=ReadSettings(columns=("offset",)), max_split_bytes=20_000)
