"""Every named segment, each with what Kafka 4.3.1 does to it."""

from __future__ import annotations

import gzip
import struct

from tests.support.cases import FRAMING, INDEXES, Case
from tests.support.segments import (
    ABORT,
    CODEC_GZIP,
    COMMIT,
    INT32_MAX,
    LEADER_CHANGE,
    batch,
    control_batch,
    control_key,
    marker,
    marker_value,
    record,
    segment,
    varint,
)

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


def accepted(name: str, *entries: bytes) -> Case:
    """Nothing is wrong with it as far as recovery looks."""
    return Case(name, segment(open_transaction(), *entries, AFTER), 0)


def rejected(name: str, error_class: str, *entries: bytes) -> Case:
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


_NOT_TRANSACTIONAL = batch(3, producer_id=PID, producer_epoch=0, base_sequence=3)

TRANSACTIONS: tuple[Case, ...] = (
    rejected("non-transactional batch inside a transaction", STATE, _NOT_TRANSACTIONAL),
    rejected(
        "the same without records",
        STATE,
        batch(3, 0, producer_id=PID, producer_epoch=0, base_sequence=3),
    ),
    rejected(
        "the same with a new producer epoch",
        STATE,
        batch(3, producer_id=PID, producer_epoch=1, base_sequence=0),
    ),
    accepted(
        "non-transactional batch of another producer", batch(3, producer_id=OTHER, producer_epoch=0)
    ),
    accepted("non-transactional batch without a producer", batch(3)),
    accepted("after the commit", marker(3, PID, 0, commit=True), _NOT_TRANSACTIONAL),
    accepted("after the abort", marker(3, PID, 0, commit=False), _NOT_TRANSACTIONAL),
    accepted(
        "marker of an older producer epoch still ends it",
        marker(3, PID, -1, commit=True),
        _NOT_TRANSACTIONAL,
    ),
    accepted(
        "marker without a transaction",
        marker(3, OTHER, 0, commit=False),
        marker(4, OTHER, 0, commit=False),
    ),
    accepted("transactional flag without a producer id", batch(3, transactional=True), batch(6)),
    accepted(
        "producer epoch and sequence going backward", open_transaction(3), open_transaction(6)
    ),
    accepted(
        "sequence beyond Int32.max",
        batch(3, producer_id=OTHER, base_sequence=INT32_MAX, last_offset_delta=9),
    ),
    accepted(
        "negative last offset delta of a producer",
        batch(9, producer_id=OTHER, base_sequence=1, last_offset_delta=-5),
    ),
    accepted(
        "two transactions open at one offset, one ended",
        open_transaction(0, OTHER),
        marker(9, PID, 0, commit=True),
    ),
    rejected(
        "two transactions open at one offset, both ended",
        ILLEGAL,
        open_transaction(0, OTHER),
        marker(9, PID, 0, commit=True),
        marker(10, OTHER, 0, commit=True),
    ),
    rejected(
        "abort markers whose offsets go backward",
        ILLEGAL,
        open_transaction(3, OTHER),
        marker(10, PID, 0, commit=False),
        marker(9, OTHER, 0, commit=False),
    ),
    rejected(
        "two abort markers at one offset",
        ILLEGAL,
        open_transaction(3, OTHER),
        marker(10, PID, 0, commit=False),
        marker(10, OTHER, 0, commit=False),
    ),
    accepted(
        "commit markers whose offsets go backward",
        open_transaction(3, OTHER),
        marker(10, PID, 0, commit=True),
        marker(9, OTHER, 0, commit=True),
    ),
    accepted(
        "backward abort marker of an empty transaction",
        marker(10, PID, 0, commit=False),
        marker(3, 9, 0, commit=False),
    ),
)

CONTROL: tuple[Case, ...] = (
    *(
        rejected(f"control type {t} with a producer id", ILLEGAL, control(control_key(t)))
        for t in (-1, LEADER_CHANGE, 3, 4, 5, 6, 7, 100)
    ),
    rejected("control type 2 without a value", ILLEGAL, control(control_key(LEADER_CHANGE), None)),
    *(
        accepted(f"control type {t} without a producer id", control(control_key(t), producer_id=-1))
        for t in (0, 2, 7)
    ),
    accepted(
        "nonsense in a control batch without a producer id", control(None, None, producer_id=-1)
    ),
    accepted(
        "control batch without the transactional flag",
        control_batch(10, PID, 0, KEY, VALUE, transactional=False),
    ),
    rejected("key null", NULL, control(None)),
    *(ends(f"key of {n} bytes", control(KEY[:n])) for n in (0, 1, 3)),
    ends("key of 0 bytes and no value", control(b"", None)),
    accepted("key of 9 bytes", control(KEY + bytes(5))),
    ends("key version -1", control(control_key(COMMIT, -1))),
    ends("key version -1 of another type, no value", control(control_key(LEADER_CHANGE, -1), None)),
    accepted("key version 1", control(control_key(ABORT, 1))),
    rejected("value null", NULL, control(KEY, None)),
    *(rejected(f"value of {n} bytes", UNDERFLOW, control(KEY, VALUE[:n])) for n in range(6)),
    ends("value version -1", control(KEY, marker_value(version=-1))),
    ends("value version -1 of 2 bytes", control(KEY, b"\xff\xff")),
    accepted("value version 1", control(KEY, marker_value(version=1))),
    rejected("value version 1 of 2 bytes", UNDERFLOW, control(KEY, b"\0\1")),
    accepted("value of 9 bytes", control(KEY, VALUE + b"abc")),
)

_MAGIC_87 = bytearray(control(KEY, struct.pack(">h", -1)))
_MAGIC_87[16] = 0x57

OTHERS: tuple[Case, ...] = (
    ends("unparseable marker under magic 0x57", bytes(_MAGIC_87)),
    Case("unparseable marker first in the file", segment(control(b""), AFTER), len(AFTER)),
    Case("unparseable marker last in the file", segment(control(b"")), 0),
    Case(
        "unparseable marker in front of a last offset overflow",
        segment(control(b""), batch(2**31)),
        len(AFTER),
    ),
)


GOOD = record(0, 0, KEY, VALUE)
_START = b"\0" + varint(0) + varint(0)  # attributes, timestamp delta, offset delta
_FIELDS = varint(4) + KEY + varint(6) + VALUE
_LONG = b"\xff" * 5 + b"\0"  # a varint of 6 bytes


def body(*parts: bytes) -> bytes:
    """A record of any bytes under a right size."""
    joined = b"".join(parts)
    return varint(len(joined)) + joined


RECORDS: tuple[Case, ...] = (
    accepted("control batch with zero records", payload(b"", count=0)),
    accepted("record count 0 with bytes behind the header", payload(b"\xff" * 9, count=0)),
    ends("record count -1", payload(GOOD, count=-1)),
    ends("record count 1, no bytes", payload(b"")),
    ends("record count 1, one byte too many", payload(GOOD + b"\0")),
    ends("record count 1, two records", payload(GOOD * 2)),
    accepted("record count 2, one record", payload(GOOD, count=2)),
    accepted("record count 2, nonsense behind the first", payload(GOOD + b"\xff" * 9, count=2)),
    ends("record size cut short", payload(b"\x80")),
    rejected("record size of 6 bytes", ILLEGAL, payload(_LONG + GOOD)),
    ends("record size larger than the batch", payload(varint(200) + GOOD[1:])),
    ends("record size one too large", payload(varint(len(GOOD)) + GOOD[1:])),
    ends("record size one too small", payload(varint(len(GOOD) - 2) + GOOD[1:])),
    ends("record size negative", payload(varint(-5) + GOOD[1:])),
    ends("record size 0", payload(varint(0) + GOOD[1:])),
    ends(
        "timestamp delta of 11 bytes",
        payload(body(b"\0", b"\xff" * 10, b"\0", b"\0", _FIELDS, b"\0")),
    ),
    accepted(
        "timestamp delta of 10 bytes",
        payload(body(b"\0", b"\xff" * 9, b"\1", b"\0", _FIELDS, b"\0")),
    ),
    ends("offset delta of 6 bytes", payload(body(b"\0\0", _LONG, _FIELDS, b"\0"))),
    ends("key size of 6 bytes", payload(body(_START, _LONG, _FIELDS, b"\0"))),
    ends("key size beyond the batch", payload(body(_START, varint(99), KEY))),
    ends("value size beyond the batch", payload(body(_START, varint(4), KEY, varint(99), VALUE))),
    ends("record ends behind the key", payload(body(_START, varint(4), KEY))),
    ends("record ends behind the value", payload(body(_START, _FIELDS))),
    ends("header count -1", payload(body(_START, _FIELDS, varint(-1)))),
    ends("header count beyond the batch", payload(body(_START, _FIELDS, varint(5)))),
    ends("header key size -1", payload(body(_START, _FIELDS, varint(1), varint(-1), varint(-1)))),
    ends(
        "header key size beyond the batch",
        payload(body(_START, _FIELDS, varint(1), varint(9), b"k")),
    ),
    ends(
        "header value size beyond the batch",
        payload(body(_START, _FIELDS, varint(1), varint(0), varint(9))),
    ),
    accepted(
        "one header", payload(body(_START, _FIELDS, varint(1), varint(1), b"k", varint(1), b"v"))
    ),
    accepted(
        "one header, value null", payload(body(_START, _FIELDS, varint(1), varint(0), varint(-1)))
    ),
    accepted("record attributes -1", payload(body(b"\xff\0\0", _FIELDS, b"\0"))),
)


def gzip_control_batch(data: bytes, *, count: int = 1) -> bytes:
    """A control batch whose records are really compressed with gzip."""
    return payload(gzip.compress(data, mtime=0), count=count, attributes=CODEC_GZIP)


CODECS: tuple[Case, ...] = (
    *(
        accepted(f"codec {c} with zero records", payload(b"", count=0, attributes=c))
        for c in range(1, 8)
    ),
    *(rejected(f"codec {c}", ILLEGAL, payload(GOOD, attributes=c)) for c in (5, 6, 7)),
    rejected("codec 7, record count -1", ILLEGAL, payload(GOOD, attributes=7, count=-1)),
)

#: What Kafka unpacks and a build refuses, whatever Kafka makes of it.
COMPRESSED: tuple[Case, ...] = (
    accepted("control batch in gzip", gzip_control_batch(GOOD)),
    rejected("gzip bit over plain records", KAFKA, payload(GOOD, attributes=CODEC_GZIP)),
    ends("gzip, record count -1", gzip_control_batch(GOOD, count=-1)),
    rejected(
        "gzip with a value of 1 byte", UNDERFLOW, gzip_control_batch(record(0, 0, KEY, VALUE[:1]))
    ),
)


NAMED: tuple[Case, ...] = (
    FRAMING + INDEXES + TRANSACTIONS + CONTROL + RECORDS + CODECS + COMPRESSED + OTHERS
)
