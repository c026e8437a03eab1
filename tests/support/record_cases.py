"""Named segments about the bytes of a control batch's records, plain and compressed."""

from __future__ import annotations

import gzip

from tests.support.cases import Case
from tests.support.producer_cases import (
    ILLEGAL,
    KAFKA,
    KEY,
    UNDERFLOW,
    VALUE,
    ends,
    passes,
    payload,
    refused,
)
from tests.support.segments import CODEC_GZIP, record, varint

GOOD = record(0, 0, KEY, VALUE)
_START = b"\0" + varint(0) + varint(0)  # attributes, timestamp delta, offset delta
_FIELDS = varint(4) + KEY + varint(6) + VALUE
_LONG = b"\xff" * 5 + b"\0"  # a varint of 6 bytes


def body(*parts: bytes) -> bytes:
    """A record of any bytes under a right size."""
    joined = b"".join(parts)
    return varint(len(joined)) + joined


RECORDS: tuple[Case, ...] = (
    passes("control batch with zero records", payload(b"", count=0)),
    passes("record count 0 with bytes behind the header", payload(b"\xff" * 9, count=0)),
    ends("record count -1", payload(GOOD, count=-1)),
    ends("record count 1, no bytes", payload(b"")),
    ends("record count 1, one byte too many", payload(GOOD + b"\0")),
    ends("record count 1, two records", payload(GOOD * 2)),
    passes("record count 2, one record", payload(GOOD, count=2)),
    passes("record count 2, nonsense behind the first", payload(GOOD + b"\xff" * 9, count=2)),
    ends("record size cut short", payload(b"\x80")),
    refused("record size of 6 bytes", ILLEGAL, payload(_LONG + GOOD)),
    ends("record size larger than the batch", payload(varint(200) + GOOD[1:])),
    ends("record size one too large", payload(varint(len(GOOD)) + GOOD[1:])),
    ends("record size one too small", payload(varint(len(GOOD) - 2) + GOOD[1:])),
    ends("record size negative", payload(varint(-5) + GOOD[1:])),
    ends("record size 0", payload(varint(0) + GOOD[1:])),
    ends(
        "timestamp delta of 11 bytes",
        payload(body(b"\0", b"\xff" * 10, b"\0", b"\0", _FIELDS, b"\0")),
    ),
    passes(
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
    passes(
        "one header", payload(body(_START, _FIELDS, varint(1), varint(1), b"k", varint(1), b"v"))
    ),
    passes(
        "one header, value null", payload(body(_START, _FIELDS, varint(1), varint(0), varint(-1)))
    ),
    passes("record attributes -1", payload(body(b"\xff\0\0", _FIELDS, b"\0"))),
)


def squeezed(data: bytes, *, count: int = 1) -> bytes:
    """A control batch whose records are really compressed with gzip."""
    return payload(gzip.compress(data, mtime=0), count=count, attributes=CODEC_GZIP)


CODECS: tuple[Case, ...] = (
    *(
        passes(f"codec {c} with zero records", payload(b"", count=0, attributes=c))
        for c in range(1, 8)
    ),
    *(refused(f"codec {c}", ILLEGAL, payload(GOOD, attributes=c)) for c in (5, 6, 7)),
    refused("codec 7, record count -1", ILLEGAL, payload(GOOD, attributes=7, count=-1)),
)

#: What Kafka unpacks and a build refuses, whatever Kafka makes of it.
COMPRESSED: tuple[Case, ...] = (
    passes("control batch in gzip", squeezed(GOOD)),
    refused("gzip bit over plain records", KAFKA, payload(GOOD, attributes=CODEC_GZIP)),
    ends("gzip, record count -1", squeezed(GOOD, count=-1)),
    refused("gzip with a value of 1 byte", UNDERFLOW, squeezed(record(0, 0, KEY, VALUE[:1]))),
)
