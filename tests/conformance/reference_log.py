"""A partition that the reference program loads, writes and reads, as its only replica.

What a broker does soon in the background is done at once; what it does later, such as the removal
of files that it has renamed to ``.deleted``, is not done. The high watermark follows the log end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from .reference_files import Header, contents_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .kafka_reference import KafkaReference

DAY_MS = 86_400_000


class LogState(NamedTuple):
    """The offsets and sizes that a log reports."""

    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    recovery_point: int
    base_offsets: tuple[int, ...]


class Appended(NamedTuple):
    """Offsets of what was appended, and the log after it."""

    first_offset: int
    last_offset: int
    state: LogState


class Producer(NamedTuple):
    """An active producer; -1 where it has no such thing."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    first_data_offset: int
    last_data_offset: int
    transaction_first_offset: int


class Read(NamedTuple):
    """The result of a fetch: bytes of one segment, and what a consumer needs to pass over aborts.

    `segment_base_offset`, `position_bytes`, `size_bytes`: none when it brings nothing.
    `name_offset`: the offset that Kafka calls it by. `aborted`: producer id and first offset of
    each aborted transaction.
    """

    segment_base_offset: int | None
    position_bytes: int | None
    size_bytes: int | None
    name_offset: int | None
    aborted: tuple[tuple[int, int], ...]


class ConsumedRecord(NamedTuple):
    """A record as a consumer returns it; None is Kafka's null."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Consumed(NamedTuple):
    """The records of a consumer, and its error after them; None for no error."""

    records: tuple[ConsumedRecord, ...]
    fault: str | None


class ReferenceLog:
    """A context manager over the open log of the reference program, which has one at a time.

    At its end the files stay as a kill leaves them, but for the zeros after the entries of the
    active segment's index files; `close` and `kill` are the other two ends. Every method raises
    `KafkaRefusal` when Kafka does.
    """

    def __init__(self, reference: KafkaReference, reply: list[str]) -> None:
        self._reference = reference
        self._open = True
        #: The log as it was loaded.
        self.loaded = _state(reply[1:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self._end("log-drop")

    def set_clock(self, now_ms: int) -> None:
        """Set the broker's clock, which stands still."""
        self._reference.demand("log-clock", now_ms)

    def append_as_leader(
        self, batches: Path, leader_epoch: int = 0, origin: str = "CLIENT"
    ) -> Appended:
        """Append all batches of a file in one call; Kafka gives them their offsets.

        `origin` is one of Kafka's ``AppendOrigin``; markers come from the ``COORDINATOR``.
        """
        return self._appended("log-append-leader", batches, leader_epoch, origin)

    def append_as_follower(self, batches: Path, leader_epoch: int = 0) -> Appended:
        """Append all batches of a file in one call, as they are."""
        return self._appended("log-append-follower", batches, leader_epoch)

    def roll(self) -> LogState:
        """Begin a segment."""
        return _state(self._reference.demand("log-roll")[1:])

    def clean(self, uncleanable_offset: int) -> tuple[int, LogState]:
        """Run the cleaner over all below an offset; return what it checkpoints, and the log."""
        reply = self._reference.demand("log-clean", uncleanable_offset)
        return int(reply[1]), _state(reply[2:])

    def flush(self) -> None:
        """Make everything durable; the recovery point is the log end then."""
        self._reference.demand("log-flush")

    def truncate_to(self, offset: int) -> LogState:
        """Drop everything from an offset on, as a follower does."""
        return _state(self._reference.demand("log-truncate", offset)[1:])

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_message: bool = True,
        isolation: str = "TXN_COMMITTED",
    ) -> Read:
        """Fetch; `isolation` is one of Kafka's ``FetchIsolation``."""
        fields = self._reference.demand(
            "log-read", offset, max_bytes, "true" if min_one_message else "false", isolation
        )
        aborted = tuple(
            (int(producer), int(first)) for producer, first in map(str.split, fields[2:])
        )
        if fields[1] == "empty":
            return Read(None, None, None, None, aborted)
        base_offset, position_bytes, size_bytes, name_offset = map(int, fields[1].split())
        return Read(base_offset, position_bytes, size_bytes, name_offset, aborted)

    def consume(self, offset: int, *, committed: bool, max_bytes: int = 1 << 20) -> Consumed:
        """Return all records from an offset on as a consumer of that isolation level gets them."""
        flag = "true" if committed else "false"
        *records, end = self._reference.demand("log-consume", offset, flag, max_bytes)[1:]
        return Consumed(
            tuple(map(_consumed, records)), end.removeprefix("!") if end != "-" else None
        )

    def state(self) -> LogState:
        """Offsets and segments now."""
        return _state(self._reference.demand("log-state")[1:])

    def epochs(self) -> list[tuple[int, int]]:
        """Leader epochs and their start offsets."""
        reply = self._reference.demand("log-epochs")[1:]
        return [(int(epoch), int(start)) for epoch, start in map(str.split, reply)]

    def producers(self) -> list[Producer]:
        """Active producers, in the order in which Kafka writes them."""
        reply = self._reference.demand("log-producers")[1:]
        return [Producer(*map(int, text.split())) for text in reply]

    def close(self) -> None:
        """Flush and close, as a clean shutdown does."""
        self._end("log-close")

    def kill(self) -> None:
        """Let go of the files as they are."""
        self._end("log-kill")

    def _end(self, request: str) -> None:
        self._open = False
        self._reference.demand(request)

    def _appended(self, *request: object) -> Appended:
        first_offset, last_offset, *state = self._reference.demand(*request)[1:]
        return Appended(int(first_offset), int(last_offset), _state(state))


def load(
    reference: KafkaReference,
    partition_dir: Path,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    now_ms: int = DAY_MS,
    producer_expiration_ms: int = DAY_MS,
    settings: Mapping[str, object] | None = None,
) -> ReferenceLog:
    """Load a partition as a starting broker does: ``UnifiedLog``'s creation, with ``LogLoader``.

    `partition_dir`: ``TOPIC-PARTITION``; made when it is missing. Kafka writes and deletes files in
    it. `clean`: whether the data directory has the mark of a clean shutdown. `recovery_point`,
    `log_start_offset`: the partition's entries in the data directory's checkpoints. `now_ms`: the
    broker's clock, which forgets idle producers. `producer_expiration_ms`: the broker's setting
    ``producer.id.expiration.ms``. `settings`: the topic's settings, by Kafka's names;
    `internal.segment.bytes` for segments of less than 1 MiB (3.9.1 has no such limit and takes
    `segment.bytes`). Raises `KafkaRefusal`: the broker does not start with it.
    """
    reply = reference.demand(
        "log-open",
        partition_dir,
        "true" if clean else "false",
        recovery_point,
        log_start_offset,
        now_ms,
        f"producer.id.expiration.ms={producer_expiration_ms}",
        *(f"{name}={value}" for name, value in (settings or {}).items()),
    )
    return ReferenceLog(reference, reply)


def _consumed(word: str) -> ConsumedRecord:
    offset, timestamp, kind, epoch, *words = word.split(":")
    return ConsumedRecord(int(offset), int(timestamp), int(kind), int(epoch), *contents_of(*words))


def _state(fields: list[str]) -> LogState:
    start, end, stable, recovery_point, *base_offsets = map(int, fields)
    return LogState(start, end, stable, recovery_point, tuple(base_offsets))
