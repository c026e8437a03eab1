"""The results are the same with a store that lists objects in no order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_index import read_records
from kafka_index.core.fs.uris import TieredOptions
from tests.servers.faults import FaultProxy, Shuffle, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.campaign import sample_size
from tests.support.command_line import run_here
from tests.support.remote import new_bucket, upload
from tests.support.restoring import copy_dump
from tests.support.tiered import Setting, setting

# A page of a listing has a thousand objects: there are three.
_MORE_OBJECTS = 2100
PARTITIONS = (
    *("orders.eu-west-0", "orders.eu-west-1", "payments-0", "payments-1", "customer-profiles-0"),
    *("mixed.codecs-feed-0", "__consumer_offsets-0", "__cluster_metadata-0"),
)


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
    partitions = [name for name in PARTITIONS if not name.startswith("_")]
    lines = [
        f"{name.rpartition('-')[0]},{name.rpartition('-')[2]},{offset}"
        for name in partitions
        for offset in range(0, 3000, 250)
    ]
    queries = folder / "queries.csv"
    queries.write_text("\n".join(["topic,partition,offset", *lines, ""]))
    tiered = setting("local")
    with fault_proxy(s3.endpoint) as proxy, new_bucket(s3.behind(proxy.endpoint)) as bucket:
        dump = upload(copy_dump(folder / "dump", *PARTITIONS), f"{bucket}/dump")
        remote = upload(Path(tiered.remote), f"{bucket}/remote")
        if s3.folder is not None:
            for number in range(_MORE_OBJECTS):
                name = partitions[number % len(partitions)]
                key = f"{bucket.removeprefix('s3://')}/dump/{name}/{number:07d}.other"
                (s3.folder / key).touch()
        yield Stored(proxy, dump, tiered, remote, queries)


_COMMANDS: dict[str, Callable[[Stored, Path], list[object]]] = {
    "build": lambda at, out: ["--input", at.dump, "--output", out / "indexes"],
    "verify": lambda at, out: ["--input", at.dump, "--report", out / "report.csv"],
    "lookup": lambda at, out: [
        *("--logs", at.dump, "--queries", at.queries, "--output", out / "answers.csv"),
        *("--by", "offset", "--resolve", "record"),
    ],
    "export": lambda at, out: [
        *("--input", at.dump, "--format", "jsonl", "--output", out / "records")
    ],
    "find": lambda at, _: ["--input", at.dump, "--key-regex", "1", "--json"],
    "cat": lambda at, _: ["payments", "--input", at.dump, "--by-time", "-f", "json"],
    "restore": lambda at, out: [
        *("--input", at.dump, "--output", out / "data", "--cluster", "same")
    ],
    "metadata": lambda at, _: [at.dump, "--what", "offsets", "--json"],
    "rewrite": lambda at, out: [
        *("--input", at.dump, "--output", out / "data", "--drop-where", "offset = 7"),
        "--allow-revive",
    ],
    "dump": lambda at, _: [
        *(f"{at.dump}/orders.eu-west-*/*.index", f"{at.dump}/payments-*/*.log", "--json")
    ],
    "lookup tiered": lambda at, _: [
        *("--tiered", at.remote, "--tiered-format", "local", "--topic", "wallet_tx"),
        *("--timestamp", "0", "--json"),
    ],
    "build tiered": lambda at, out: ["--tiered", at.remote, "--output", out / "indexes"],
}
#: Whether objects move across pages.
_ORDERS = (True, False)[: sample_size(2, one_in=2)]


@pytest.mark.parametrize("command", _COMMANDS)
def test_command_gives_the_same_result_for_an_unsorted_listing(
    stored: Stored, tmp_path: Path, command: str
) -> None:
    stored.proxy.listings = None
    expected = _run(command, stored, tmp_path / "sorted")

    for number, across in enumerate(_ORDERS):
        stored.proxy.listings = Shuffle(7919 + number, across=across)
        assert _run(command, stored, tmp_path / f"shuffled-{number}") == expected
    stored.proxy.listings = None


def _run(command: str, stored: Stored, out: Path) -> tuple[int, str, dict[str, str]]:
    out.mkdir()
    result = run_here(command.split(maxsplit=1)[0], *map(str, _COMMANDS[command](stored, out)))
    files = {
        str(path.relative_to(out)): _digest(path)
        for path in sorted(out.rglob("*"))
        # Records of runs have their ids and times.
        if path.is_file() and ".kafka-index" not in str(path)
    }
    assert result.returncode in (0, 1), result.stderr
    # How long it took.
    text = re.sub(r"[0-9.,]+ ?(s|ms|[kMG]?B/s|/s)\b", "", result.stdout.replace(str(out), ""))
    return result.returncode, text, files


def _digest(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".csv":
        # Partitions are reported as they are done.
        data = b"".join(sorted(data.splitlines()))
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("across", _ORDERS)
def test_records_are_the_same_for_an_unsorted_listing(stored: Stored, *, across: bool) -> None:
    stored.proxy.listings = None
    tiered = TieredOptions((stored.remote,))
    expected = [read_records(stored.dump).read_all(), read_records([], tiered=tiered).read_all()]

    stored.proxy.listings = Shuffle(104729, across=across)
    assert read_records(stored.dump).read_all() == expected[0]
    assert read_records([], tiered=tiered).read_all() == expected[1]
    stored.proxy.listings = None
