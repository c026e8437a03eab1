"""A partition that the reference program has open as Kafka's ``UnifiedLog``, and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: A modification time, in ms, before every timestamp that can be asked for.
NEVER_MS = -1000


class Batch(NamedTuple):
    """A batch and the segment it lies in."""

    segment_base_offset: int
    base_offset: int
    last_offset: int
    position_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class RejectedCall:
    """Kafka threw: the simple name of the exception's class."""

    error_class: str


class _Empty:
    """A fetch without an error that brings nothing."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY = _Empty()

#: The numbers of an answer in the order that each question documents; None where Kafka finds
#: nothing.
Answer = tuple[int, ...] | RejectedCall | _Empty | None


class ReferencePartition:
    """A context manager over the open partition of the reference program, which has one at a time.

    Any number of targets can go into a question; the answers come in their order. A batch in them
    is the five numbers of a `Batch`.
    """

    def __init__(self, demand: Callable[..., list[str]], reply: list[str]) -> None:
        self._demand = demand
        self.log_start_offset, self.log_end_offset, *base_offsets = map(int, reply[1:])
        self.base_offsets: tuple[int, ...] = tuple(base_offsets)
        #: None until it is set: then the log end is the bound of answers.
        self.high_watermark: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the partition; its index files are trimmed to their entries."""
        self._demand("close")

    def update_high_watermark(self, offset: int) -> None:
        """Set the high watermark as a broker that reads its checkpoint."""
        self.high_watermark = int(self._demand("high-watermark", offset)[1])

    @property
    def bound(self) -> int:
        """The offset at which answers end."""
        return self.log_end_offset if self.high_watermark is None else self.high_watermark

    def batches(self, segment_base_offset: int) -> list[tuple[Batch, int]]:
        """All batches that Kafka can read of a segment, each with its largest timestamp."""
        answers = map(_answer, self._demand("batches", segment_base_offset)[1:])
        return [
            (Batch(*numbers[:5]), numbers[5]) for numbers in answers if isinstance(numbers, tuple)
        ]

    def fetch(self, offsets: Iterable[int], *, committed: bool = False) -> list[Answer]:
        """Batch that a fetch begins with, offset and position of the floor entry in its segment.

        `committed` stops at the high watermark.
        """
        return self._all("fetch-committed" if committed else "fetch", offsets)

    def record(self, offsets: Iterable[int]) -> list[Answer]:
        """Return offset, timestamp and epoch of the first records that `fetch` would show."""
        return self._all("record", offsets)

    def time(self, timestamps: Iterable[int]) -> list[Answer]:
        """Offset, timestamp, epoch (-1: none) by ``fetchOffsetByTimestamp``, then the batch.

        There is no batch for -1 (latest) and -2 (earliest).
        """
        return self._all("time", timestamps)

    def time_batch(self, timestamps: Iterable[int]) -> list[Answer]:
        """The batch that a search for a timestamp looks into first; not for -1 and -2."""
        return self._all("time-batch", timestamps)

    def offset_entry(self, offsets: Iterable[int]) -> list[Answer]:
        """Base offset of the floor segment; offset and position of its floor entry."""
        return self._all("offset-entry", offsets)

    def time_entry(self, timestamps: Iterable[int]) -> list[Answer]:
        """Base offset of the segment; its floor entry; the position a search would start from."""
        return self._all("time-entry", timestamps)

    def translate(self, segment_base_offset: int, offsets: Iterable[int]) -> list[Answer]:
        """Base offset, position, size by ``LogSegment.translateOffset``."""
        return self._of_segment("translate", segment_base_offset, offsets)

    def find(
        self, segment_base_offset: int, timestamps: Iterable[int], starting_offset: int
    ) -> list[Answer]:
        """Offset, timestamp, epoch (-1: none) by ``LogSegment.findOffsetByTimestamp``."""
        return self._of_segment("find", segment_base_offset, timestamps, starting_offset)

    def offset_entry_of(self, segment_base_offset: int, offsets: Iterable[int]) -> list[Answer]:
        """Offset and position by ``OffsetIndex.lookup``."""
        return self._of_segment("offset-entry", segment_base_offset, offsets)

    def time_entry_of(self, segment_base_offset: int, timestamps: Iterable[int]) -> list[Answer]:
        """Timestamp and offset by ``TimeIndex.lookup``."""
        return self._of_segment("time-entry", segment_base_offset, timestamps)

    def largest_timestamp(self, segment_base_offset: int) -> Answer:
        """Largest timestamp of a segment (-1: none) and the offset that Kafka keeps with it."""
        return self._of_segment("largest", segment_base_offset, (0,))[0]

    def _all(self, kind: str, targets: Iterable[int]) -> list[Answer]:
        return [_answer(text) for text in self._demand("ask", kind, *targets)[1:]]

    def _of_segment(
        self, kind: str, base_offset: int, targets: Iterable[int], starting_offset: int = 0
    ) -> list[Answer]:
        reply = self._demand("ask-segment", kind, base_offset, starting_offset, *targets)
        return [_answer(text) for text in reply[1:]]


def _answer(text: str) -> Answer:
    if text == "-":
        return None
    if text == "empty":
        return EMPTY
    if text.startswith("!"):
        return RejectedCall(text[1:])
    return tuple(map(int, text.split(" ")))
