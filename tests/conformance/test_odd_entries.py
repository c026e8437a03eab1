"""Entries that are no files, and changed first metadata, against Kafka's own start.

Each case has its own data directory. ``make campaign`` starts all of them.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from kafka_index import predict
from kafka_index.core.format.strings import load_properties
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.startup.prediction import Verdict
from tests.support.campaign import sample_size
from tests.support.command_line import DUMP
from tests.support.restoring import copy_dump

from .broker.started_directories import Started, readable
from .campaign import SEED
from .kafka_reference import KafkaReference

PARTITIONS = ("app-logs-0", "payments-0")
_NODE = "1"
_FIRST_METADATA = (DUMP / "bootstrap.checkpoint").read_bytes()
_SEGMENT_FILES = (".index", ".timeindex", ".txnindex", ".snapshot")
_ROOT_FILES = (
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
    ".lock",
)
#: A broker waits for ever to read another pipe, or to write it.
_PIPES = (".index", ".timeindex", ".txnindex")
_MAKERS: dict[str, Callable[[Path], None]] = {
    "null": lambda path: path.symlink_to(os.devnull),
    "circular": lambda path: path.symlink_to(path.name),
    "astray": lambda path: path.symlink_to("/nonexistent/file"),
    "dangling": lambda path: path.symlink_to("nothing-here"),
    "directory": Path.mkdir,
    "linked directory": lambda path: path.symlink_to(path.parent.parent.parent),
    "pipe": os.mkfifo,
}


@dataclass(frozen=True)
class Case:
    """An entry of a kind in the place of a file.

    `name` is the ending of a segment's file where `place` is the number of the segment, else the
    name of a file in the data directory.
    """

    kind: str
    name: str
    place: int | None
    is_clean: bool
    partition: str = PARTITIONS[0]

    def change(self, data: Path) -> None:
        """Put the entry there."""
        path = data / self.name
        if self.place is not None:
            ending = ".snapshot" if self.name == ".snapshot" else ".log"
            files = sorted((data / self.partition).glob(f"*{ending}"))
            path = files[self.place].with_suffix(self.name)
        path.unlink(missing_ok=True)
        if not self.is_clean:
            (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
        _MAKERS[self.kind](path)


_CASES = [
    *(
        Case(kind, ending, place, is_clean, partition)
        for kind, ending, place, is_clean, partition in product(
            _MAKERS, _SEGMENT_FILES, (0, -1), (True, False), PARTITIONS
        )
        if kind != "pipe" or ending in _PIPES
    ),
    *(
        Case(kind, name, None, is_clean)
        for kind, name, is_clean in product(
            (kind for kind in _MAKERS if kind != "pipe"),
            (*_ROOT_FILES, f"{PARTITIONS[0]}/partition.metadata"),
            (True, False),
        )
    ),
]


def started(reference: KafkaReference, data: Path) -> Started:
    """Return what Kafka's own start makes of a data directory that has the metadata log, too."""
    root = load_properties((DUMP / "meta.properties").read_bytes())
    fields = []
    for name in PARTITIONS:
        topic_id = read_topic_id(str(DUMP / name))
        topic = name.rpartition("-")[0]
        fields.append(f"{topic}={topic_id}=1={_NODE}={root['directory.id'].value}")
    return Started.of(reference.demand("start", _NODE, "", data, *fields)[1:])


def wrong(found: Verdict, kafka: Started, data: Path) -> str | None:
    """Return what is wrong with a verdict; None for nothing."""
    faults = kafka.faults(readable([DUMP]), {})
    is_safe = kafka.starts and not faults
    is_wrong = found is Verdict.SAFE and not is_safe
    is_wrong |= found is Verdict.DOES_NOT_START and kafka.starts
    is_wrong |= found not in (Verdict.DOES_NOT_START, Verdict.UNKNOWN) and not kafka.starts
    return f"{data.name}: {found}, {kafka.reason} {faults}" if is_wrong else None


def test_startup_with_non_file_entries_is_predicted(
    reference: KafkaReference, scratch: Path
) -> None:
    every = sample_size(len(_CASES), one_in=12)
    found = []
    for number, case in enumerate(random.Random(SEED).sample(_CASES, every)):
        data = copy_dump(scratch / f"odd-{number}", *PARTITIONS)
        case.change(data)
        verdict = predict(data, config={"node.id": _NODE, "log.dirs": str(data)}).verdict
        reason = wrong(verdict, started(reference, data), data)
        found += [] if reason is None else [(case, reason)]

    assert found == []


def test_startup_with_changed_bootstrap_metadata_is_predicted(
    reference: KafkaReference, scratch: Path
) -> None:
    data = copy_dump(scratch / "first-metadata", *PARTITIONS)
    for name in PARTITIONS:
        shutil.rmtree(data / name)
    changes = [
        (at, value)
        for at, before in enumerate(_FIRST_METADATA)
        for value in sorted({before ^ 1, before ^ 0x80, 0, 0xFF} - {before})
    ]
    changes = random.Random(SEED).sample(changes, sample_size(len(changes), one_in=12))
    result = []
    # The first one leaves a batch without a record.
    for at, value in [(60, 0), *changes]:
        content = bytearray(_FIRST_METADATA)
        content[at] = value
        (data / "bootstrap.checkpoint").write_bytes(content)
        verdict = predict(data, config={"node.id": _NODE, "log.dirs": str(data)}).verdict
        kafka = reference.demand("start", _NODE, "", data)[1] == "starts"
        if verdict is not Verdict.UNKNOWN and (verdict is not Verdict.DOES_NOT_START) is not kafka:
            result.append((at, value, verdict))

    assert result == []
