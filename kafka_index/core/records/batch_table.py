"""The batch table, one row per record batch in file order, and the reasons why a scan ends.

`BatchColumns` is a chunk with the columns that a build needs. `BATCH_SCHEMA` is the complete table
for users.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import CONTROL_NONE, HEADER_COLUMNS, read_headers
from kafka_index.core.kernels.scan import BatchColumns

__all__ = ["BATCH_SCHEMA", "CONTROL_NONE", "BatchColumns"]

#: The log ends in zeros from preallocation, which is not corruption.
PREALLOCATED_TAIL = "preallocated_tail"
#: A segment before the last one ends in zeros. A broker never leaves such a segment preallocated.
ZERO_TAIL = "zero_tail"
#: Fewer bytes are left than a header has; a broker ignores them.
TORN_HEADER = "torn_header"
#: The length field points beyond the end of the log.
TORN_BATCH = "torn_batch"
#: The length field is below the minimum.
BAD_LENGTH = "bad_length"
#: A record batch that is shorter than its header.
BAD_SIZE = "bad_size"
#: The checksum does not match.
BAD_CRC = "bad_crc"
#: The magic byte is not 0 to 2. A broker reads on; consumers and followers fail.
UNKNOWN_MAGIC = "unknown_magic"
#: The batch is kept, but its transaction marker is invalid and recovery ends after it.
INVALID_MARKER = "invalid_marker"
#: A transaction marker with a compressed record. No broker writes such a batch. Kafka's recovery
#: would decompress it; a build rejects the segment.
COMPRESSED_MARKER = "compressed_marker"
#: The checksum matches, but an inner message cannot be read or has a wrong checksum.
BAD_MESSAGE = "bad_message"
#: The decompressed records exceed the memory limit (``--max-decompressed-bytes``).
TOO_LARGE = "too_large"
#: Overrides other codes if the file does not start like a log.
NOT_A_LOG = "not_a_log"
#: A batch starts before the previous one ends, or reaches into the next segment.
OVERLAP = "overlap"
#: The last offset is below the segment's base offset, or 2^31 or more above it.
OFFSET_OVERFLOW = "offset_overflow"

_Error = TypeVar("_Error", bound=KafkaIndexError)


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


BATCH_SCHEMA = pa.schema(
    [
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("segment_base_offset", pa.int64()),
        _required("position_bytes", pa.int64()),
        _required("size_bytes", pa.int32()),
        _required("base_offset", pa.int64()),
        _required("last_offset", pa.int64()),
        _required("leader_epoch", pa.int32()),
        _required("magic", pa.int8()),
        _required("attributes", pa.int16()),
        _required("crc", pa.int64()),
        _required("base_timestamp_ms", pa.int64()),
        _required("max_timestamp_ms", pa.int64()),
        _required("producer_id", pa.int64()),
        _required("producer_epoch", pa.int16()),
        _required("base_sequence", pa.int32()),
        _required("record_count", pa.int32()),
        pa.field("control_type", pa.int16()),
        pa.field("coordinator_epoch", pa.int32()),
        pa.field("control_timestamp_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class ScanStop:
    """The reason why recovery ends at a batch of a log, with a machine-readable code.

    If `refused`, Kafka's recovery fails; otherwise it truncates the log and continues. If
    `is_foreign`, the file is not a Kafka log: its first header cannot belong to this segment;
    recovery handles it according to the code. If `is_tail`, the rest of the file is preallocated
    zeros, or an incomplete batch with no valid batch after it. This is no corruption at the end of
    a partition, because every broker start removes it.
    """

    code: str
    position_bytes: int
    expected: str | None = None
    found: str | None = None
    refused: bool = False
    message: str | None = None
    is_foreign: bool = False
    is_tail: bool = field(default=False, compare=False)

    @property
    def reason_code(self) -> str:
        """The code in reports: `NOT_A_LOG` for a foreign file, otherwise the code."""
        return NOT_A_LOG if self.is_foreign else self.code

    @property
    def name(self) -> str:
        """The reason without details: the code, or a phrase if the file is not a Kafka log."""
        return "not a Kafka log" if self.is_foreign else self.code

    @property
    def text(self) -> str:
        """The reason with details."""
        text = self.name if self.message is None else f"{self.name}: {self.message}"
        if self.expected is None:
            return text
        return f"{text} (expected {self.expected}, found {self.found})"

    def error(
        self,
        kind: type[_Error],
        path: str | None = None,
        consequence: str = "",
        *,
        hint: str | None = None,
    ) -> _Error:
        return kind(
            consequence + self.name,
            path=path,
            position_bytes=self.position_bytes,
            expected=self.expected,
            found=self.found,
            hint=hint,
        )


class BatchSource(Protocol):
    """A log that is read as batch columns."""

    @property
    def log_size_bytes(self) -> int:
        """Size of the log in bytes; available after `chunks` has started."""

    @property
    def stop(self) -> ScanStop | None:
        """Why the batches end before the log does; available after `chunks` is exhausted."""

    def chunks(self) -> Iterator[BatchColumns]:
        """Yield the batches, in file order.

        Raises `KafkaIndexError` if the source cannot be read, or changes concurrently.
        """


@dataclass(frozen=True, slots=True)
class WindowBatches:
    """Batches in a window of a log; `is_aborted` marks batches of aborted transactions.

    `position_bytes` is the position of the window in the log.
    """

    window: Bytes
    position_bytes: int
    batches: BatchColumns
    is_aborted: NDArray[np.bool_] | None = None

    def select(self, rows: NDArray[np.bool_] | Longs) -> WindowBatches:
        """Return the batches selected by a mask or by ascending numbers."""
        batches = BatchColumns(*(column[rows] for column in self.batches))
        is_aborted = None if self.is_aborted is None else self.is_aborted[rows]
        return WindowBatches(self.window, self.position_bytes, batches, is_aborted)

    def read_headers(self) -> Longs:
        """Return the header fields that `core.kernels.headers.read_headers` reads."""
        columns = np.empty((HEADER_COLUMNS, self.batches.rows), np.int64)
        read_headers(self.window, self.position_bytes, self.batches.position_bytes, columns)
        return columns
