"""A broker mounts what a rewrite and an import have written, and consumers read exactly that.

Producers stay open while the broker is stopped and its directory rewritten; the broker comes back
at the same address, on the new directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kafka_index
from tests.support.command_line import run_here

from .broker import Broker, BrokerFolders
from .client import ISOLATIONS, Client, Digest, Producer
from .digests import COLUMNS, digest_of
from .topics import Topic, Traffic, Transactions

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = {"internal.segment.bytes": "24000", "index.interval.bytes": "500"}
_MIXED = Topic(
    "mixed",
    (
        Traffic(batches=40, keys=50, null_values_percent=10, headers="true"),
        *(Traffic(codec=codec, batches=20, keys=50) for codec in ("gzip", "lz4", "snappy", "zstd")),
        Transactions(batches=60, keys=50),
    ),
    _SETTINGS,
)
_STAMPED = Topic(
    "stamped",
    (Traffic(batches=40, keys=50),),
    {**_SETTINGS, "message.timestamp.type": "LogAppendTime"},
)
_OPEN = Topic("open", (), _SETTINGS)
_IMPORTED = Topic("imported", (), _SETTINGS)
_REWRITTEN = (_MIXED, _STAMPED)
#: Keys of the traffic end in digits, those of the open producers do not all.
_CONDITION = "topic <> 'open' AND key LIKE '%3' OR topic = 'open' AND offset < 20"


@dataclass(frozen=True)
class ConsumedTables:
    """The records that consumers got after a rewrite and an import, and the expected ones."""

    found: dict[str, dict[str, Digest]]
    expected: dict[str, dict[str, Digest]]
    dropped: int
    at_stop: set[Producer]
    at_start: set[Producer]
    of_open: Digest
    open_records: int


def _columns(table: pa.Table) -> Digest:
    return digest_of(table.select(list(COLUMNS)).to_batches())


def _kept(data: Path, topic: str, isolation: str) -> tuple[pa.Table, int]:
    """The records that have to stay, and how many have to go."""
    table = kafka_index.read_records(
        data / f"{topic}-0", columns=COLUMNS, isolation=isolation
    ).read_all()
    ends = pc.equal(pc.binary_slice(table["key"], -1), b"3")
    kept = table.filter(pc.invert(ends.fill_null(False)))  # noqa: FBT003, because it is a value
    return kept, len(table) - len(kept)


@pytest.fixture(scope="module")
def consumed_tables(broker_root: Path) -> ConsumedTables:
    broker = Broker(BrokerFolders(broker_root / "written-tables"))
    data = broker.home.data
    expected: dict[str, dict[str, Digest]] = {isolation: {} for isolation in ISOLATIONS}
    dropped = 0
    with broker, Client(broker.bootstrap, broker_root) as client:
        for topic in (*_REWRITTEN, _OPEN, _IMPORTED):
            client.create(topic)
            client.fill(topic)
        client.open_producer("plain-open", transactional=False)
        client.open_producer("transaction-open", transactional=True)
        client.send("plain-open", _OPEN.name, 30)
        client.begin("transaction-open")
        client.send("transaction-open", _OPEN.name, 5)
        at_stop = client.producers([_OPEN.name])["open-0"]
        broker.stop()

        for isolation in ISOLATIONS:
            for topic in _REWRITTEN:
                kept, gone = _kept(data, topic.name, isolation)
                expected[isolation][f"{topic.name}-0"] = _columns(kept)
                dropped += gone
        table, _ = _kept(data, _MIXED.name, "read_committed")
        _rewrite(data)
        expected |= _import(broker_root, data, table, expected)
        broker.start()
        client.await_in_sync(1, [_OPEN.name, _IMPORTED.name, *(each.name for each in _REWRITTEN)])

        at_start = client.producers([_OPEN.name])["open-0"]
        client.send("plain-open", _OPEN.name, 7)
        client.send("transaction-open", _OPEN.name, 2)
        client.end("transaction-open", commit=True)
        client.settled_producers("open-0", open_transactions=0)
        names = [_IMPORTED.name, *(each.name for each in _REWRITTEN)]
        actual = {isolation: client.digests(isolation, names) for isolation in ISOLATIONS}
        of_open = client.digests("read_committed", [_OPEN.name])["open-0"]
    return ConsumedTables(
        actual, expected, dropped, at_stop, at_start, of_open, 30 + 5 - 20 + 7 + 2
    )


def _rewrite(data: Path) -> None:
    """Rewrite a data directory, and put the result in its place."""
    output = data.with_name("rewritten")
    result = run_here(
        "rewrite", "--input", data, "--output", output, "--drop-where", _CONDITION, "--allow-revive"
    )
    assert result.returncode == 0, result.stderr
    os.rename(data, data.with_name("before"))
    os.rename(output, data)


def _import(
    broker_root: Path, data: Path, table: pa.Table, expected: dict[str, dict[str, Digest]]
) -> dict[str, dict[str, Digest]]:
    """Import records into an empty topic; return what consumers have to get of it too."""
    source = broker_root / "imported.parquet"
    count = len(table)
    rows = table.append_column("topic", pa.array([_IMPORTED.name] * count))
    pq.write_table(rows.append_column("partition", pa.array([0] * count)), source)
    properties = ("segment.bytes=24000", "compression.type=lz4", "batch.size=2000")
    options = [word for property_ in properties for word in ("--property", property_)]
    result = run_here("import", "--input", source, "--output", data, "--append", *options)
    assert result.returncode == 0, result.stderr
    place = table.schema.get_field_index("leader_epoch")
    epochs = pa.array([0] * count, pa.int32())
    digest = _columns(table.set_column(place, "leader_epoch", epochs))
    return {isolation: {**each, "imported-0": digest} for isolation, each in expected.items()}


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("partition", ["mixed-0", "stamped-0"])
def test_consumers_read_exactly_the_records_that_a_rewrite_left(
    consumed_tables: ConsumedTables, isolation: str, partition: str
) -> None:
    assert consumed_tables.dropped
    assert (
        consumed_tables.found[isolation][partition]
        == consumed_tables.expected[isolation][partition]
    )


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_consumers_read_exactly_the_records_that_were_imported(
    consumed_tables: ConsumedTables, isolation: str
) -> None:
    expected = consumed_tables.expected[isolation]["imported-0"]
    assert expected.records
    assert consumed_tables.found[isolation]["imported-0"] == expected


def test_leader_has_the_same_producers_and_open_transactions(
    consumed_tables: ConsumedTables,
) -> None:
    assert consumed_tables.at_start == consumed_tables.at_stop
    assert sum(one.current_txn_first_offset is not None for one in consumed_tables.at_start) == 1


def test_open_producers_continue_after_a_rewrite(consumed_tables: ConsumedTables) -> None:
    assert consumed_tables.of_open.records == consumed_tables.open_records
