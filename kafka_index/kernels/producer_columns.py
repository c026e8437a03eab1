"""The tables that follow the producers of a log: their columns, and what stands in them."""

from __future__ import annotations

#: Columns of the table of producers, a row each, in the order they appeared.
(
    PRODUCER_ID,
    PRODUCER_EPOCH,
    PRODUCER_LAST_SEQUENCE,
    PRODUCER_LAST_OFFSET,
    PRODUCER_OFFSET_DELTA,
    PRODUCER_TIMESTAMP,
    PRODUCER_COORDINATOR_EPOCH,
    PRODUCER_TXN_FIRST_OFFSET,
    PRODUCER_NODE,
    PRODUCER_FIRST_KIND,
    PRODUCER_FIRST_POSITION,
    PRODUCER_FIRST_EPOCH,
    PRODUCER_EPOCH_CHANGED,
    PRODUCER_HAS_DATA,
    PRODUCER_HAS_MARKER,
    PRODUCER_FIRST_MARKER_ROW,
    PRODUCER_TXN_IS_FIRST,
) = range(17)
PRODUCER_COLUMNS = 17

#: What the first batch of a producer was, of those that count (a marker without records does not).
FIRST_NONE, FIRST_TRANSACTIONAL, FIRST_PLAIN, FIRST_MARKER = range(4)

#: Columns of the list of open transactions: first offset, and the producer's row or `NODE_CLOSED`.
NODE_FIRST_OFFSET, NODE_PRODUCER = range(2)
NODE_CLOSED = -1
#: In `PRODUCER_NODE`: no transaction is open; or it shares its place in the list with another one
#: that began at the same offset and is named there; or that other one has ended, and the place
#: with it.
NO_NODE, SHARED_NODE, GONE_NODE = -1, -2, -3

#: Columns of the list of transactions that were aborted.
(
    ABORT_ROW,
    ABORT_POSITION,
    ABORT_PRODUCER_ID,
    ABORT_FIRST_OFFSET,
    ABORT_LAST_OFFSET,
    ABORT_NEXT_OPEN_OFFSET,
    ABORT_MAY_BEGIN_EARLIER,
) = range(7)
ABORT_COLUMNS = 7
#: For an offset: there is none, or it is not known here.
NO_OFFSET = -1

#: Columns of the list of leader epochs.
EPOCH_NUMBER, EPOCH_START_OFFSET, EPOCH_POSITION = range(3)
EPOCH_COLUMNS = 3

#: Places of the state array: rows in use of each table; the first of the list of transactions that
#: may be open; the latest epoch; batches followed; whether one was transactional.
(
    STATE_PRODUCERS,
    STATE_NODES,
    STATE_HEAD,
    STATE_ABORTS,
    STATE_EPOCHS,
    STATE_LATEST_EPOCH,
    STATE_BATCHES,
    STATE_TRANSACTIONAL,
) = range(8)
STATE_SIZE = 8
