"""A broker starts on generated dumps, restored together, and consumers read them.

They get the records of all restored batches, those of aborted transactions only if they ask for
uncommitted records, and nothing that was not written.
"""

from __future__ import annotations

import base64
import hashlib
import random
import struct
from collections import defaultdict
from typing import TYPE_CHECKING

from kafka_index import restore_dump
from tests.commands.restore.generated_dumps import Batch, Dump, draw_dump, kept_batches
from tests.conformance.campaign import SEED
from tests.conformance.test_generated_dumps import committed_offsets, consumed
from tests.support.campaign import sample_size
from tests.support.missing_offsets import NAME, write_partition

from .broker import Broker, BrokerFolders
from .client import ISOLATIONS, Client, Digest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.conformance.kafka_reference import KafkaReference
    from tests.conformance.reference_log import ConsumedRecord

DUMPS = sample_size(200, one_in=5)


def merge(dumps: dict[str, Dump], root: Path) -> list[Path]:
    """Move the copies of all dumps into data directories, as partitions of different topics."""
    checkpoints: dict[Path, list[str]] = defaultdict(list)
    homes = set()
    for number, (topic, dump) in enumerate(dumps.items()):
        topic_id = base64.urlsafe_b64encode(bytes([7, *number.to_bytes(15)])).decode().rstrip("=")
        for copy in dump.copies:
            home = root / copy.name
            home.mkdir(parents=True, exist_ok=True)
            homes.add(home)
            (copy / NAME).rename(home / f"{topic}-0")
            text = f"version: 0\ntopic_id: {topic_id}"
            (home / f"{topic}-0" / "partition.metadata").write_text(text)
            for file in copy.glob("*-checkpoint"):
                checkpoints[home / file.name].append(
                    file.read_text().splitlines()[2].replace("orders", topic)
                )
            (copy / "meta.properties").replace(home / "meta.properties")
    for path, lines in checkpoints.items():
        path.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    return sorted(homes)


def digest(records: Iterable[ConsumedRecord]) -> Digest:
    """The digest of records, as the Java client program computes it."""
    made, count = hashlib.sha256(), 0
    for record in records:
        count += 1
        made.update(
            struct.pack(
                ">qqii",
                record.offset,
                record.timestamp_ms,
                record.timestamp_type,
                record.leader_epoch,
            )
        )
        for field in (record.key, record.value):
            made.update(struct.pack(">i", -1 if field is None else len(field)) + (field or b""))
    return Digest(count, made.hexdigest())


def test_consumers_get_the_intact_records_of_generated_dumps(
    reference: KafkaReference, broker_root: Path, tmp_path: Path
) -> None:
    home = BrokerFolders(broker_root / "generated-dumps")
    Broker(home)  # formats its directories
    dumps = {f"g{at}": draw_dump(tmp_path / f"g{at}", f"{SEED}-{at}") for at in range(DUMPS)}
    homes = merge(dumps, tmp_path / "homes")
    random.Random(SEED).shuffle(homes)

    result = restore_dump(homes, home.data, seeds=[home.metadata], salvage="batches")

    actual = {partition.partition.topic: partition for partition in result.partitions}
    expected: dict[str, dict[str, Digest]] = {isolation: {} for isolation in ISOLATIONS}
    for topic, dump in dumps.items():
        if actual[topic].is_skipped:
            continue
        write_partition(
            tmp_path / topic / "whole",
            {each[0].first: b"".join(one.data for one in each) for each in dump.history},
        )
        (records, _), *_ = consumed(reference, tmp_path / topic / "whole" / NAME, clean=False)
        kept = kept_batches(home.data / f"{topic}-0")
        if not kept or not max((home.data / f"{topic}-0").glob("*.log")).stat().st_size:
            # A consumer waits before an empty segment for its first record.
            continue
        epochs = {
            Batch(0, 0, one).content: int.from_bytes(one[12:16], signed=True)
            if one[16] == 2
            else -1
            for one in kept
        }
        held = {
            offset: epochs[batch.content]
            for batch in dump.batches
            if batch.content in epochs
            for offset in range(batch.first, batch.last + 1)
        }
        committed = committed_offsets(dump)
        served = [
            one._replace(leader_epoch=held[at]) for at, one in sorted(records.items()) if at in held
        ]
        expected[ISOLATIONS[0]][f"{topic}-0"] = digest(served)
        expected[ISOLATIONS[1]][f"{topic}-0"] = digest(
            one for one in served if one.offset in committed
        )
    with Broker(home) as broker, Client(broker.bootstrap, broker_root) as client:
        topics = [name.removesuffix("-0") for name in expected[ISOLATIONS[0]]]
        assert len(topics) > DUMPS // 2
        client.await_in_sync(1, topics)
        for isolation in ISOLATIONS:
            read = client.digests(isolation, topics)
            wrong = {
                name: (dumps[name.removesuffix("-0")].changes, read[name], one)
                for name, one in expected[isolation].items()
                if read[name] != one
            }
            assert not wrong, (isolation, wrong)
