"""The writes of the brokers: topics, their settings, and their traffic."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KIB = 1024
_USUAL_NAMES = {"internal.segment.bytes": "segment.bytes"}
_FOREVER_MS = str(2**63 - 1)
# What the index files depend on and a data directory does not hold; the product needs both.
_INDEX_SETTINGS = ("index.interval.bytes", "segment.index.bytes")


@dataclass(frozen=True)
class Traffic:
    """Batches for every partition of a topic.

    `records`, `value_bytes`: records of a batch, bytes of a value: from and to, as ``1-12``.
    `times`: ``rising``, ``unordered``, ``sawtooth`` or ``wild``; `step_ms` apart. `keys`: how many
    different keys; 0 for none.
    """

    codec: str = "none"
    batches: int = 200
    records: str = "1-12"
    value_bytes: str = "20-200"
    times: str = "rising"
    step_ms: int = 20_000
    keys: int = 10_000
    null_values_percent: int = 0
    headers: str = "false"
    idempotent: str = "true"

    command = "produce"

    def options(self) -> dict[str, object]:
        """The options of the client's command."""
        return asdict(self)


@dataclass(frozen=True)
class Transactions(Traffic):
    """Transactions of several producers at a time, over several segments now and then."""

    batches: int = 240
    aborted_percent: int = 40
    left_open: str = "false"

    command = "transact"


@dataclass(frozen=True)
class Topic:
    """A topic; ``internal.segment.bytes`` is Kafka's own way below ``segment.bytes`` of 1 MiB."""

    name: str
    traffic: tuple[Traffic, ...]
    settings: dict[str, str] = field(default_factory=dict)
    partitions: int = 1

    def for_older_brokers(self) -> Topic:
        """The same topic for Kafka before 4.0, which takes small segments by their usual name."""
        renamed = {_USUAL_NAMES.get(key, key): value for key, value in self.settings.items()}
        return replace(self, settings=renamed)

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner works on it."""
        return self.settings.get("cleanup.policy") == "compact"

    @property
    def has_transactions(self) -> bool:
        """Whether anything in it is transactional."""
        return any(isinstance(traffic, Transactions) for traffic in self.traffic)


def _topic(
    name: str,
    *traffic: Traffic,
    kib: int = 48,
    partitions: int = 1,
    settings: dict[str, str] | None = None,
) -> Topic:
    sized = {"internal.segment.bytes": str(kib * _KIB), **(settings or {})}
    return Topic(name, traffic, sized, partitions)


_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
_ANY_TIME = {"message.timestamp.after.max.ms": _FOREVER_MS, "segment.ms": _FOREVER_MS}
_PREALLOCATE = {"preallocate": "true"}

#: Settings and shapes of data that index files may depend on.
TOPICS = (
    _topic("orders.eu-west_1", Traffic(null_values_percent=10, headers="true"), partitions=2),
    _topic("no.keys-at-all", Traffic(keys=0, times="unordered")),
    _topic("a-0-1", Traffic(codec="gzip", records="5-30")),
    _topic("-.leading-dash.", Traffic(codec="snappy", records="5-30")),
    _topic("lz4" + "-long" * 40, Traffic(codec="lz4", records="5-30")),
    _topic("zstd__", Traffic(codec="zstd", records="5-30")),
    _topic(
        "mixed.codecs",
        *(
            Traffic(codec=codec, batches=60, times="unordered")
            for codec in ("zstd", "none", "lz4", "gzip", "snappy")
        ),
    ),
    _topic("log.append-time", Traffic(), settings={"message.timestamp.type": "LogAppendTime"}),
    _topic("history.wild", Traffic(times="wild", idempotent="false"), settings=_ANY_TIME),
    _topic("history.sawtooth", Traffic(times="sawtooth", step_ms=3_600_000), settings=_ANY_TIME),
    _topic("rolled.by-time", Traffic(), kib=1024, settings={"segment.ms": "600000"}),
    _topic("single.records", Traffic(batches=500, records="1-1")),
    _topic("interval.zero", Traffic(), settings={"index.interval.bytes": "0"}),
    _topic("interval.wide", Traffic(), kib=160, settings={"index.interval.bytes": "65536"}),
    _topic(
        "rolled.by-index",
        Traffic(batches=500, records="1-3"),
        kib=1024,
        settings={"index.interval.bytes": "0", "segment.index.bytes": "1200"},
    ),
    _topic("preallocated", Traffic(), settings=_PREALLOCATE),
    _topic(
        "large.batches", Traffic(batches=9, records="90-100", value_bytes="9000-9400"), kib=2048
    ),
    _topic(
        "profiles.compacted", Traffic(keys=900, null_values_percent=8), kib=24, settings=_COMPACT
    ),
    _topic(
        "levels.compacted-zstd",
        Traffic(codec="zstd", keys=2000, batches=400),
        kib=24,
        settings=_COMPACT,
    ),
    _topic("payments", Transactions(), Traffic(batches=20), partitions=2),
    _topic("payments.lz4", Transactions(codec="lz4", left_open="true")),
    _topic("ledger.compacted", Transactions(keys=500), kib=24, settings=_COMPACT),
    _topic("shipments.trimmed", Traffic()),
)

#: The log start of this one is moved into the middle of a segment.
TRIMMED = next(topic for topic in TOPICS if topic.name == "shipments.trimmed")
TRIMMED_TO = 700

#: Written while the follower runs; the others it copies when they are complete.
FOLLOWED = (
    _topic("followed.live", Traffic(batches=150), partitions=2),
    _topic("followed.transactions", Transactions(batches=200), partitions=2, kib=24),
    _topic("followed.compacted", Traffic(keys=900), partitions=2, kib=24, settings=_COMPACT),
)

#: Written until the broker is killed.
KILLED = (
    _topic("killed", Traffic(), partitions=2),
    _topic("killed.preallocated", Traffic(codec="lz4"), settings=_PREALLOCATE),
    _topic(
        "killed.interval-zero", Traffic(times="unordered"), settings={"index.interval.bytes": "0"}
    ),
    _topic("killed.transactions", Transactions(left_open="true")),
    _topic("killed.large", Traffic(batches=5, records="90-100", value_bytes="9000-9400"), kib=2048),
)


def write_index_settings(topics: Iterable[Topic], path: Path) -> None:
    """Write the settings of topics that the product needs, as a file for ``--config``."""
    lines = [
        f"topic.{topic.name}.{key}={topic.settings[key]}\n"
        for topic in topics
        for key in _INDEX_SETTINGS
        if key in topic.settings
    ]
    path.write_text("".join(lines), encoding="utf-8")
