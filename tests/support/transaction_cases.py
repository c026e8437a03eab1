"""Named segments about transactions, and about the keys and values of control records."""

from __future__ import annotations

import struct

from tests.support.cases import Case
from tests.support.producer_cases import (
    AFTER,
    ILLEGAL,
    KEY,
    NULL,
    OTHER,
    PID,
    STATE,
    UNDERFLOW,
    VALUE,
    control,
    ends,
    open_transaction,
    passes,
    refused,
)
from tests.support.segments import (
    ABORT,
    COMMIT,
    INT32_MAX,
    LEADER_CHANGE,
    batch,
    control_batch,
    control_key,
    marker,
    marker_value,
    segment,
)

_NOT_TRANSACTIONAL = batch(3, producer_id=PID, producer_epoch=0, base_sequence=3)

TRANSACTIONS: tuple[Case, ...] = (
    refused("non-transactional batch inside a transaction", STATE, _NOT_TRANSACTIONAL),
    refused(
        "the same without records",
        STATE,
        batch(3, 0, producer_id=PID, producer_epoch=0, base_sequence=3),
    ),
    refused(
        "the same with a new producer epoch",
        STATE,
        batch(3, producer_id=PID, producer_epoch=1, base_sequence=0),
    ),
    passes(
        "non-transactional batch of another producer", batch(3, producer_id=OTHER, producer_epoch=0)
    ),
    passes("non-transactional batch without a producer", batch(3)),
    passes("after the commit", marker(3, PID, 0, commit=True), _NOT_TRANSACTIONAL),
    passes("after the abort", marker(3, PID, 0, commit=False), _NOT_TRANSACTIONAL),
    passes(
        "marker of an older producer epoch still ends it",
        marker(3, PID, -1, commit=True),
        _NOT_TRANSACTIONAL,
    ),
    passes(
        "marker without a transaction",
        marker(3, OTHER, 0, commit=False),
        marker(4, OTHER, 0, commit=False),
    ),
    passes("transactional flag without a producer id", batch(3, transactional=True), batch(6)),
    passes("producer epoch and sequence going backward", open_transaction(3), open_transaction(6)),
    passes(
        "sequence beyond Int32.max",
        batch(3, producer_id=OTHER, base_sequence=INT32_MAX, last_offset_delta=9),
    ),
    passes(
        "negative last offset delta of a producer",
        batch(9, producer_id=OTHER, base_sequence=1, last_offset_delta=-5),
    ),
    passes(
        "two transactions open at one offset, one ended",
        open_transaction(0, OTHER),
        marker(9, PID, 0, commit=True),
    ),
    refused(
        "two transactions open at one offset, both ended",
        ILLEGAL,
        open_transaction(0, OTHER),
        marker(9, PID, 0, commit=True),
        marker(10, OTHER, 0, commit=True),
    ),
    refused(
        "abort markers whose offsets go backward",
        ILLEGAL,
        open_transaction(3, OTHER),
        marker(10, PID, 0, commit=False),
        marker(9, OTHER, 0, commit=False),
    ),
    refused(
        "two abort markers at one offset",
        ILLEGAL,
        open_transaction(3, OTHER),
        marker(10, PID, 0, commit=False),
        marker(10, OTHER, 0, commit=False),
    ),
    passes(
        "commit markers whose offsets go backward",
        open_transaction(3, OTHER),
        marker(10, PID, 0, commit=True),
        marker(9, OTHER, 0, commit=True),
    ),
    passes(
        "backward abort marker of an empty transaction",
        marker(10, PID, 0, commit=False),
        marker(3, 9, 0, commit=False),
    ),
)

CONTROL: tuple[Case, ...] = (
    *(
        refused(f"control type {t} with a producer id", ILLEGAL, control(control_key(t)))
        for t in (-1, LEADER_CHANGE, 3, 4, 5, 6, 7, 100)
    ),
    refused("control type 2 without a value", ILLEGAL, control(control_key(LEADER_CHANGE), None)),
    *(
        passes(f"control type {t} without a producer id", control(control_key(t), producer_id=-1))
        for t in (0, 2, 7)
    ),
    passes(
        "nonsense in a control batch without a producer id", control(None, None, producer_id=-1)
    ),
    passes(
        "control batch without the transactional flag",
        control_batch(10, PID, 0, KEY, VALUE, transactional=False),
    ),
    refused("key null", NULL, control(None)),
    *(ends(f"key of {n} bytes", control(KEY[:n])) for n in (0, 1, 3)),
    ends("key of 0 bytes and no value", control(b"", None)),
    passes("key of 9 bytes", control(KEY + bytes(5))),
    ends("key version -1", control(control_key(COMMIT, -1))),
    ends("key version -1 of another type, no value", control(control_key(LEADER_CHANGE, -1), None)),
    passes("key version 1", control(control_key(ABORT, 1))),
    refused("value null", NULL, control(KEY, None)),
    *(refused(f"value of {n} bytes", UNDERFLOW, control(KEY, VALUE[:n])) for n in range(6)),
    ends("value version -1", control(KEY, marker_value(version=-1))),
    ends("value version -1 of 2 bytes", control(KEY, b"\xff\xff")),
    passes("value version 1", control(KEY, marker_value(version=1))),
    refused("value version 1 of 2 bytes", UNDERFLOW, control(KEY, b"\0\1")),
    passes("value of 9 bytes", control(KEY, VALUE + b"abc")),
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
