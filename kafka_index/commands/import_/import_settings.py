"""The settings of an import, under Kafka's names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from kafka_index.core.errors import ConfigError
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.job.engine import new_run_id
from kafka_index.core.log.append.settings import LogSettings, TimestampType

_COMPRESSION, _BATCH_SIZE = "compression.type", "batch.size"
_TIMESTAMP_TYPE = "message.timestamp.type"
#: Values of ``compression.type`` that name no codec: nothing here has been compressed before.
_NO_CODEC = frozenset(("producer", "uncompressed"))
_DEFAULT_BATCH_BYTES = 16384


class ImportMode(Enum):
    """The treatment of partitions that exist already."""

    #: The import is refused.
    CREATE = "create"
    #: The records continue the log.
    APPEND = "append"
    #: The records replace what an earlier import has written.
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """The settings of an import; small, and picklable.

    ``compression.type`` is none, gzip, snappy, lz4 or zstd. `batch_bytes` is ``batch.size``, the
    most bytes of a batch before it is compressed; a larger record has a batch of its own.
    `timestamp_type` is ``message.timestamp.type``: LogAppendTime gives all records the time of the
    import, and by default each record has the type of its column ``timestampType``. Records without
    offsets get theirs in the order of the column `order_by`. New partitions get the topic ids. No
    two imports share a run id.
    """

    log: LogSettings = field(default_factory=LogSettings)
    compression: str = "none"
    batch_bytes: int = _DEFAULT_BATCH_BYTES
    timestamp_type: TimestampType | None = None
    order_by: str | None = None
    mode: ImportMode = ImportMode.CREATE
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    run_id: str = field(default_factory=new_run_id)

    @property
    def max_batch_bytes(self) -> int:
        """The size limit of a batch of several records: no more than a broker would append."""
        return min(self.batch_bytes, self.log.max_message_bytes, self.log.segment_bytes)

    @classmethod
    def of_properties(
        cls,
        properties: Mapping[str, str],
        *,
        mode: ImportMode,
        order_by: str | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the settings in properties under Kafka's names."""
        left = dict(properties)
        compression = left.pop(_COMPRESSION, "none")
        if compression in _NO_CODEC:
            compression = "none"
        if compression not in COMPRESSION_NAMES:
            raise ConfigError(
                f"{_COMPRESSION} is unknown",
                expected=f"one of {', '.join(COMPRESSION_NAMES)}",
                found=repr(compression),
            )
        log = LogSettings.of_properties(
            {name: left[name] for name in left if name != _BATCH_SIZE}, (_COMPRESSION, _BATCH_SIZE)
        )
        return cls(
            log,
            compression,
            _batch_bytes(left),
            log.message_timestamp_type if _TIMESTAMP_TYPE in left else None,
            order_by,
            mode,
            topic_ids or {},
        )


def _batch_bytes(properties: Mapping[str, str]) -> int:
    text = properties.get(_BATCH_SIZE, str(_DEFAULT_BATCH_BYTES))
    value = parse_integer(text.strip())
    if value is None or not 0 <= value <= INT32_MAX:
        raise ConfigError(
            f"{_BATCH_SIZE} has an invalid value", expected=f"0..{INT32_MAX}", found=repr(text)
        )
    return value
