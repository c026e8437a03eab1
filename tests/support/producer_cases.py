"""The parts of the named segments about producers, and their possible outcomes.

Recovery reads records only of a control batch with a producer id, and needs only the first. Either
the scan ends after that batch (``InvalidRecordException``, ``CorruptRecordException``), or the
broker refuses to start (anything else that is thrown), or nothing is wrong.
"""

from __future__ import annotations

from tests.support.cases import Case
from tests.support.segments import COMMIT, batch, control_batch, control_key, marker_value, segment

PID = 7
OTHER = 8
AFTER = batch(20)

ILLEGAL = "IllegalArgumentException"
NULL = "NullPointerException"
UNDERFLOW = "BufferUnderflowException"
KAFKA = "KafkaException"
STATE = "InvalidTxnStateException"

KEY = control_key(COMMIT)
VALUE = marker_value()


def open_transaction(base_offset: int = 0, producer_id: int = PID, records: int = 3) -> bytes:
    """A transactional data batch."""
    return batch(
        base_offset,
        records,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def ends(name: str, bad: bytes) -> Case:
    """The batch is kept and what follows it is cut."""
    return Case(name, segment(open_transaction(), bad, AFTER), len(AFTER))


def passes(name: str, *entries: bytes) -> Case:
    """Nothing is wrong with it as far as recovery looks."""
    return Case(name, segment(open_transaction(), *entries, AFTER), 0)


def refused(name: str, error_class: str, *entries: bytes) -> Case:
    """The broker does not start."""
    return Case(name, segment(open_transaction(), *entries, AFTER), error_class)


def control(
    key: bytes | None = KEY, value: bytes | None = VALUE, *, producer_id: int = PID
) -> bytes:
    """A control batch at offset 10 with any key and value."""
    return control_batch(10, producer_id, 0, key, value)


def payload(data: bytes, *, count: int = 1, attributes: int = 0) -> bytes:
    """A control batch at offset 10 with any bytes for records."""
    return control_batch(
        10, PID, 0, None, None, payload=data, record_count=count, attributes=attributes
    )
