"""A store that lists objects in no order gives what one that lists them by key gives."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_index import read_records
from kafka_index.tiered.options import TieredOptions
from tests.servers.faults import FaultProxy, Shuffle, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, run_here
from tests.support.remote import new_bucket, upload
from tests.support.tiered import Setting, setting

# A page of a listing has a thousand objects: there are three.
_MORE_OBJECTS = 2100
_LOOKUPS = ("--by", "offset", "--resolve", "record")


@dataclass(frozen=True)
class Stored:
    """A dump and a tiered one in a bucket, behind a proxy."""

    proxy: FaultProxy
    dump: str
    tiered: Setting
    remote: str
    queries: Path


@pytest.fixture(scope="module")
def stored(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("queries")
    partitions = sorted(path.name for path in DUMP.glob("[a-z]*-?"))
    lines = [
        f"{name.rpartition('-')[0]},{name.rpartition('-')[2]},{offset}"
        for name in partitions
        for offset in range(0, 3000, 250)
    ]
    queries = folder / "queries.csv"
    queries.write_text("\n".join(["topic,partition,offset", *lines, ""]))
    tiered = setting("local")
    with (
        fault_proxy(s3.endpoint) as proxy,
        new_bucket(s3.through(proxy.endpoint)) as bucket,
    ):
        dump = upload(DUMP, f"{bucket}/dump")
        remote = upload(Path(tiered.remote), f"{bucket}/remote")
        if s3.folder is not None:
            for number in range(_MORE_OBJECTS):
                name = partitions[number % len(partitions)]
                key = f"{bucket.removeprefix('s3://')}/dump/{name}/{number:07d}.other"
                (s3.folder / key).touch()
        yield Stored(proxy, dump, tiered, remote, queries)


def _build(at: Stored, out: Path) -> list[object]:
    return ["build", "--input", at.dump, "--output", out / "indexes"]


def _verify(at: Stored, out: Path) -> list[object]:
    return ["verify", "--input", at.dump, "--report", out / "report.csv"]


def _lookup(at: Stored, out: Path) -> list[object]:
    queries = ("--queries", at.queries, "--output", out / "answers.csv")
    return ["lookup", "--logs", at.dump, *queries, *_LOOKUPS]


def _export(at: Stored, out: Path) -> list[object]:
    return ["export", "--input", at.dump, "--format", "jsonl", "--output", out / "records"]


def _find(at: Stored, _out: Path) -> list[object]:
    return ["find", "--input", at.dump, "--key-regex", "1", "--json"]


def _restore(at: Stored, out: Path) -> list[object]:
    return ["restore", "--input", at.dump, "--output", out / "data", "--cluster", "same"]


def _metadata(at: Stored, _out: Path) -> list[object]:
    return ["metadata", at.dump, "--what", "offsets", "--json"]


def _rewrite(at: Stored, out: Path) -> list[object]:
    return [
        "rewrite", "--input", at.dump, "--output", out / "data", "--drop-where", "offset = 7",
        "--allow-revive",
    ]  # fmt: skip


def _dump(at: Stored, _out: Path) -> list[object]:
    return ["dump", f"{at.dump}/orders.eu-west-*/*.index", f"{at.dump}/payments-*/*.log", "--json"]


def _tiered_lookup(at: Stored, _out: Path) -> list[object]:
    report = ("--tiered-format", "local", "--topic", "wallet_tx", "--timestamp", "0", "--json")
    return ["lookup", "--tiered", at.remote, *report]


def _tiered_build(at: Stored, out: Path) -> list[object]:
    return ["build", "--tiered", at.remote, "--output", out / "indexes"]


_COMMANDS = (
    _build,
    _verify,
    _lookup,
    _export,
    _find,
    _restore,
    _metadata,
    _rewrite,
    _dump,
    _tiered_lookup,
    _tiered_build,
)


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command.__name__[1:])
def test_a_command_gives_the_same_over_a_listing_in_no_order(
    stored: Stored, tmp_path: Path, command: Callable[[Stored, Path], list[object]]
) -> None:
    stored.proxy.listings = None
    expected = _run(command, stored, tmp_path / "sorted")

    for number, across in enumerate((False, True)):
        stored.proxy.listings = Shuffle(7919 + number, across=across)
        assert _run(command, stored, tmp_path / f"shuffled-{number}") == expected
    stored.proxy.listings = None


def _run(
    command: Callable[[Stored, Path], list[object]], stored: Stored, out: Path
) -> tuple[int, str, dict[str, str]]:
    out.mkdir()
    done = run_here(*map(str, command(stored, out)))
    files = {
        str(path.relative_to(out)): _digest(path)
        for path in sorted(out.rglob("*"))
        # Records of runs have their ids and times.
        if path.is_file() and ".kafka-index" not in str(path)
    }
    assert done.returncode in (0, 1), done.stderr
    # How long it took.
    text = re.sub(r"[0-9.,]+ ?(s|ms|[kMG]?B/s|/s)\b", "", done.stdout.replace(str(out), ""))
    return done.returncode, text, files


def _digest(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".csv":
        # Partitions are reported as they are done.
        data = b"".join(sorted(data.splitlines()))
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("across", [False, True])
def test_records_are_the_same_over_a_listing_in_no_order(stored: Stored, *, across: bool) -> None:
    stored.proxy.listings = None
    tiered = TieredOptions((stored.remote,))
    expected = [read_records(stored.dump).read_all(), read_records([], tiered=tiered).read_all()]

    stored.proxy.listings = Shuffle(104729, across=across)
    assert read_records(stored.dump).read_all() == expected[0]
    assert read_records([], tiered=tiered).read_all() == expected[1]
    stored.proxy.listings = None
