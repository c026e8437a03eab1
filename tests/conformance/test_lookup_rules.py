"""The results of lookups: each rule by a partition that shows it, as Kafka answers, and we."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from kafka_index.core.log.choices import Resolve
from tests.support.segments import (
    CODECS,
    INT32_MAX,
    WRAPPER_CODECS,
    batch,
    marker,
    message,
    packed_batch,
    wrapper,
)

from .partitions import Partition, partition

if TYPE_CHECKING:
    from .both import ComparedPartition

LATEST, EARLIEST, LARGEST = -1, -2, -3
INT64_MAX = 2**63 - 1

# The columns of an answer that a rule is about. They also say how far is asked.
STATUS, RECORD_STATUS, INDEX_STATUS = "status", "status of a record", "status of an index"
SEGMENT, BASE, LAST = "segment_base_offset", "batch_base_offset", "batch_last_offset"
POSITION, SIZE = "batch_position_bytes", "batch_size_bytes"
FOUND, TIME, EPOCH = "found_offset", "found_timestamp_ms", "found_leader_epoch"
ENTRY, ENTRY_TIME, ENTRY_POSITION = "entry_offset", "entry_timestamp_ms", "entry_position_bytes"

NOTHING, END = "no_record_at_or_after", "log_end"
BEFORE, AFTER = "before_log_start", "after_log_end"


class Rule(NamedTuple):
    """A question, and one column of the answer to it."""

    name: str
    partition: Partition
    target: int
    column: str
    value: int | str | None

    @property
    def resolve(self) -> Resolve:
        """The level of a lookup that fills the column."""
        if self.column.startswith("entry") or self.column == INDEX_STATUS:
            return Resolve.INDEX
        is_of_record = self.column.startswith("found") or self.column == RECORD_STATUS
        return Resolve.RECORD if is_of_record else Resolve.BATCH


# ----------------------------------------------------------------------------------------- offsets

FIRST = [batch(0), batch(3)]
LENGTH = len(batch(0))
# Offsets 0..2, 3..5 and, in a second segment, 6..8.
PLAIN = partition((0, FIRST), (6, [batch(6)]))
UP_TO_6 = partition((0, FIRST), (6, [batch(6)]), high_watermark=6)
UP_TO_1000 = partition((0, FIRST), (6, [batch(6)]), high_watermark=1000)
# 0..2, then what compaction left: 10..12 and, in a segment named 20, 23..25; the end is 40.
GAPS = partition((0, [batch(0), batch(10)]), (20, [batch(23), batch(30, 0, last_offset_delta=9)]))
HOLLOW = partition((0, [batch(0)]), (3, []), (4, []), (9, [batch(9)]))
EMPTY, FROM_7 = partition((7, [])), partition((7, [batch(7)]))
FROM_4 = partition((0, FIRST), log_start=4)
GONE = partition((0, [batch(0)]), log_start=50)
UP_TO_START = partition((0, FIRST), log_start=3, high_watermark=1)
# The log ends at 9, by the name of its last segment.
COMPACTED = partition((0, [batch(0)]), (9, []))
TWICE = partition((0, [batch(0), batch(3), batch(3), batch(6)]))
# The entry is that of 40..49, and from there on no batch holds its offset.
BACK = partition((0, [batch(base, 10, 5) for base in (0, 10, 40, 20)]), interval=300)
# 0..9, then 4..5, then 10..12: for 7, the search has forgotten the first batch.
STEPPING = partition((0, [batch(0, 10), batch(4, 2), batch(10)]))
WIDE = partition((5, [batch(5), batch(5 + INT32_MAX, 1)]))
# An index that is longer than the part that Kafka searches first.
LONG = partition((0, [batch(i, 1, 0) for i in range(3000)]), interval=0)
UNFRAMED = partition((0, [packed_batch(0, [(0, 50), (3, 40)], 2, unframed=True)]))
# As some versions of librdkafka wrote it.
WRAPPER_AT_0 = partition((0, [wrapper(0, 1, [(0, 5), (1, 6), (2, 7)], 1), batch(3)]))
LOST = partition((0, [packed_batch(0, [(0, 50)], last_offset_delta=9), batch(10)]))
LOST_WHOLLY = partition((0, [batch(0, 0, last_offset_delta=9)]), (10, [batch(10)]))
ENDED = partition((0, [batch(0), marker(3, 5, 0, commit=True, timestamp=77)]))
APPENDED = partition((0, [packed_batch(0, [(0, 50), (1, 60)], log_append_ms=1234)]))
LED, NOT_LED = (partition((0, [batch(0, leader_epoch=epoch)])) for epoch in (7, -1))
MESSAGES = [partition((0, [message(0, magic, 5), message(1, magic, 6)])) for magic in (0, 1)]


def packed(codec: int) -> Partition:
    return partition((0, [packed_batch(0, [(0, 50), (3, 40), (6, 60)], codec)]))


def wrapped(magic: int, codec: int) -> Partition:
    messages = [(0, 5), (2, 9), (4, 7)] if magic else [(11, -1), (14, -1)]
    return partition((10, [wrapper(14, magic, messages, codec), batch(15)]))


OFFSET_RULES = [
    *(
        Rule(f"{offset} leads to the batch that holds it", PLAIN, offset, column, value)
        for offset in (3, 4, 5)
        for column, value in ((BASE, 3), (LAST, 5), (POSITION, LENGTH), (SIZE, LENGTH))
    ),
    Rule("in a gap leads to the next batch", GAPS, 5, BASE, 10),
    Rule("after a segment's batches leads to the next segment", GAPS, 15, SEGMENT, 20),
    Rule("after a segment's batches leads to the next batch", GAPS, 15, BASE, 23),
    Rule("between segment name and first batch leads to that", GAPS, 21, BASE, 23),
    Rule("segments without batches are passed over", HOLLOW, 3, SEGMENT, 9),
    Rule("log whose offsets go back ends where it starts", BACK, 0, STATUS, END),
    Rule("log whose offsets go back has none of its own", BACK, 25, STATUS, AFTER),
    Rule("log whose offsets go back has none of its entry", BACK, 45, STATUS, AFTER),
    Rule("batch without records is found by its offsets", GAPS, 35, BASE, 30),
    Rule("batch without records is found up to its last offset", GAPS, 35, LAST, 39),
    Rule("record after the last one is not found", GAPS, 35, RECORD_STATUS, NOTHING),
    Rule("last batches were compacted away", COMPACTED, 5, STATUS, NOTHING),
    Rule("log end is an empty read", PLAIN, 9, STATUS, END),
    Rule("above the log end is out of range", PLAIN, 10, STATUS, AFTER),
    Rule("first offset of an empty partition is its end", EMPTY, 7, STATUS, END),
    Rule("below the first segment is out of range", FROM_7, 6, STATUS, BEFORE),
    Rule("below the log start is out of range", FROM_4, 3, STATUS, BEFORE),
    Rule("log start inside a batch leads to that batch", FROM_4, 4, BASE, 3),
    Rule("below a log start above all segments", GONE, 49, STATUS, BEFORE),
    Rule("log start above all segments is an empty log", GONE, 50, STATUS, END),
    Rule("above a log start above all segments", GONE, 51, STATUS, AFTER),
    Rule("inside a batch written twice leads to the later", TWICE, 4, POSITION, 2 * LENGTH),
    Rule("base offset of a batch written twice leads to the earlier", TWICE, 3, POSITION, LENGTH),
    Rule("batch before decides where offsets step back", STEPPING, 7, BASE, 10),
    *(
        Rule("plain message is a batch of its own", messages, 1, column, 1)
        for messages in MESSAGES
        for column in (BASE, LAST)
    ),
    *(
        Rule(
            f"wrapper in codec {codec} begins at its first message", wrapped(1, codec), 12, BASE, 10
        )
        for codec in WRAPPER_CODECS
    ),
    *(
        Rule(f"old wrapper in codec {codec} begins at its message", wrapped(0, codec), 12, BASE, 11)
        for codec in WRAPPER_CODECS
    ),
    Rule("wrapper offset 0 makes the offsets inside absolute", WRAPPER_AT_0, 2, FOUND, 3),
    *(
        Rule(f"record is found in a batch in codec {codec}", packed(codec), 1, column, value)
        for codec in CODECS
        for column, value in ((FOUND, 3), (TIME, 40))
    ),
    Rule("record is found in snappy without framing", UNFRAMED, 1, FOUND, 3),
    Rule("record is looked for in later batches if lost", LOST, 5, FOUND, 10),
    Rule("record is looked for in later segments if lost", LOST_WHOLLY, 5, FOUND, 10),
    Rule("control record counts as a record", ENDED, 3, FOUND, 3),
    Rule("control record has its own time", ENDED, 3, TIME, 77),
    Rule("log append time stands for the record's own", APPENDED, 0, TIME, 1234),
    Rule("leader epoch is the batch's", LED, 1, EPOCH, 7),
    Rule("batch without leader epoch has none", NOT_LED, 1, EPOCH, None),
    *(
        Rule("floor entry in an index of many pages", LONG, offset, ENTRY, offset)
        for offset in (0, 1, 1023, 1024, 1974, 1975, 1976, 2998, 2999)
    ),
    Rule("without entries the floor is the segment's offset", PLAIN, 7, ENTRY, 6),
    Rule("without entries the floor is the segment's start", PLAIN, 7, ENTRY_POSITION, 0),
    Rule("index alone does not see the log end", PLAIN, 1000, INDEX_STATUS, "found"),
    Rule("at the high watermark is not visible yet", UP_TO_6, 6, STATUS, END),
    Rule("below the high watermark is found", UP_TO_6, 5, BASE, 3),
    Rule("log end above the high watermark is an empty read", UP_TO_6, 9, STATUS, END),
    Rule("above the log end is out of range whatever is visible", UP_TO_6, 10, STATUS, AFTER),
    Rule("high watermark above the log end is the log end", UP_TO_1000, 8, BASE, 6),
    Rule("high watermark below the log start is the log start", UP_TO_START, 3, STATUS, END),
    Rule("farthest offset of a segment is found", WIDE, 5 + INT32_MAX, BASE, 5 + INT32_MAX),
]


@pytest.mark.parametrize("rule", OFFSET_RULES, ids=lambda rule: rule.name)
def test_lookup_of_an_offset_follows_the_documented_rule(
    both: ComparedPartition, rule: Rule
) -> None:
    row = both.offset(rule.partition, rule.target, rule.resolve)
    assert getattr(row, rule.column.partition(" ")[0]) == rule.value


# -------------------------------------------------------------------------------------- timestamps


def batch_with_timestamps(*times: int, log_start: int = 0) -> Partition:
    """A batch of records with these timestamps, and no other."""
    return partition((0, [batch(0, len(times), timestamps=times)]), log_start=log_start)


# Offsets 0..2 at 10, 30, 20; 3..4 at 25, 50; in a second segment 5..6 at 40, 60.
SEGMENTS = (
    (0, [batch(0, timestamps=[10, 30, 20]), batch(3, 2, timestamps=[25, 50])]),
    (5, [batch(5, 2, timestamps=[40, 60])]),
)
TIMED = partition(*SEGMENTS)
UP_TO_3, UP_TO_5 = (partition(*SEGMENTS, high_watermark=offset) for offset in (3, 5))
LATER = (3, [batch(3, timestamps=[200] * 3)])
BELOW_START = partition((0, [batch(0, timestamps=[10, 20, 99])]), LATER, log_start=3)
EMPTIED = partition((0, [batch(0, 0, last_offset_delta=2, max_timestamp=99)]), LATER)
WITHOUT_LATEST = partition((0, [packed_batch(0, [(0, 10)], max_timestamp=99), batch(5, 1)]))
STAMPED = partition((10, [wrapper(14, 1, [(0, 5), (4, 7)], 1, log_append_ms=80)]))
UNTIMED = partition((0, [message(0, 0)]))
# The first batch is never indexed; the second one's entry is 50.
INDEXED = partition(
    (0, [batch(i, 1, timestamps=[t]) for i, t in enumerate((10, 50, 30, 70, 60))]), interval=0
)
RISING = [batch(i, 1, timestamps=[10 + i]) for i in range(5)]
INDEXED_FROM_3 = partition((0, RISING), interval=0, log_start=3)
TWO_LARGEST = partition((0, [batch(0), batch(3, timestamps=[9999, 5, 9999])]), (6, [batch(6)]))
EQUAL = partition(*((base, [batch(base, timestamps=[5] * 3)]) for base in (0, 3)))
EMPTIED_LARGEST = partition(
    (0, [batch(0, timestamps=[5] * 3), batch(3, 0, last_offset_delta=2, max_timestamp=99)])
)
LED_FROM_4 = partition((0, FIRST), log_start=4, epochs=((2, 0), (5, 3), (6, 5)))


def partition_with_epochs(*epochs: tuple[int, int]) -> Partition:
    return partition(*SEGMENTS, epochs=epochs)


TIME_RULES = [
    *(
        Rule(f"{time} leads to the first record as late", TIMED, time, FOUND, offset)
        # 50 is in the first segment; 40, earlier and in the second one, is never looked at.
        for time, offset in ((0, 0), (10, 0), (11, 1), (30, 1), (31, 4), (40, 4), (51, 6))
    ),
    Rule("later than all is not found", TIMED, 61, RECORD_STATUS, NOTHING),
    Rule("batch is the first with a largest timestamp as late", TIMED, 25, BASE, 0),
    Rule("batch whose latest record is gone is passed over", WITHOUT_LATEST, 50, FOUND, 5),
    Rule("segment has nothing, and later ones are not tried", EMPTIED, 50, RECORD_STATUS, NOTHING),
    Rule("segment wholly below the log start is chosen", BELOW_START, 50, RECORD_STATUS, NOTHING),
    Rule(
        "records below the log start", batch_with_timestamps(10, 20, 30, log_start=2), 5, FOUND, 2
    ),
    *(Rule(f"in a batch in codec {codec}", packed(codec), 55, FOUND, 6) for codec in CODECS),
    *(
        Rule(f"in a wrapper in codec {codec}", wrapped(1, codec), 6, column, value)
        for codec in WRAPPER_CODECS
        for column, value in ((FOUND, 12), (TIME, 9), (EPOCH, None))
    ),
    Rule("log append time stands for the messages' own", STAMPED, 50, FOUND, 10),
    Rule("log append time is that of the messages", STAMPED, 50, TIME, 80),
    Rule("messages of magic 0 have no timestamp", UNTIMED, 0, RECORD_STATUS, NOTHING),
    Rule("negative timestamp is earlier than 0", batch_with_timestamps(-5, 3, -1), 0, FOUND, 1),
    Rule(
        "largest timestamp of all is found",
        batch_with_timestamps(1, INT64_MAX, 2),
        INT64_MAX,
        FOUND,
        1,
    ),
    Rule("floor entry is the last one not later", INDEXED, 60, ENTRY_TIME, 50),
    Rule("floor entry has its offset", INDEXED, 60, ENTRY, 1),
    Rule("without entries the floor is Kafka's placeholder", TIMED, 5, ENTRY_TIME, -1),
    Rule("without entries the floor is the segment's start", TIMED, 5, ENTRY_POSITION, 0),
    Rule("entry before the log start is found", INDEXED_FROM_3, 11, ENTRY, 1),
    Rule(
        "position is never before the log start",
        *(INDEXED_FROM_3, 11, ENTRY_POSITION, 3 * len(RISING[0])),
    ),
    Rule("latest is the log end", TIMED, LATEST, FOUND, 7),
    Rule("latest has no timestamp", TIMED, LATEST, TIME, -1),
    Rule("earliest is the log start", FROM_4, EARLIEST, FOUND, 4),
    Rule("earliest has no timestamp", FROM_4, EARLIEST, TIME, -1),
    Rule("latest of an empty partition", EMPTY, LATEST, FOUND, 7),
    Rule("earliest of an empty partition", EMPTY, EARLIEST, FOUND, 7),
    Rule("largest is the first with the largest timestamp", TWO_LARGEST, LARGEST, FOUND, 3),
    Rule("largest has its timestamp", TWO_LARGEST, LARGEST, TIME, 9999),
    Rule("largest of equal segments is in the first", EQUAL, LARGEST, FOUND, 0),
    Rule(
        "largest below the log start",
        batch_with_timestamps(99, 5, 5, log_start=2),
        LARGEST,
        FOUND,
        0,
    ),
    Rule("largest whose batch is empty", EMPTIED_LARGEST, LARGEST, RECORD_STATUS, NOTHING),
    Rule("largest in messages of magic 0", UNTIMED, LARGEST, RECORD_STATUS, NOTHING),
    Rule("largest without any timestamp", batch_with_timestamps(-1, -1, -1), LARGEST, FOUND, 0),
    Rule(
        "largest without any timestamp has none",
        batch_with_timestamps(-1, -1, -1),
        LARGEST,
        TIME,
        -1,
    ),
    Rule("largest below -1", batch_with_timestamps(-9, -8, -7), LARGEST, RECORD_STATUS, NOTHING),
    Rule("latest has the latest epoch", partition_with_epochs((2, 0), (5, 3)), LATEST, EPOCH, 5),
    Rule(
        "latest has that of a leader without records",
        partition_with_epochs((2, 0), (5, 7)),
        LATEST,
        EPOCH,
        5,
    ),
    Rule(
        "epoch after the log end is forgotten",
        partition_with_epochs((2, 0), (5, 8)),
        LATEST,
        EPOCH,
        2,
    ),
    Rule("earliest has the epoch of the log start", LED_FROM_4, EARLIEST, EPOCH, 5),
    Rule(
        "earliest has no epoch before the first",
        partition_with_epochs((5, 3)),
        EARLIEST,
        EPOCH,
        None,
    ),
    *(
        Rule(
            f"lines {lines} of a checkpoint contradict others",
            partition_with_epochs(*lines),
            time,
            EPOCH,
            epoch,
        )
        for lines, *epochs in (
            (((5, 0), (3, 1)), 3, None),
            (((3, 1), (5, 0)), 5, 5),
            (((5, 1), (7, 0)), 7, 7),
            (((1, 0), (3, 2), (2, 1)), 2, 1),
        )
        for time, epoch in zip((LATEST, EARLIEST), epochs, strict=True)
    ),
    Rule("latest is the high watermark", UP_TO_3, LATEST, FOUND, 3),
    Rule("record at the high watermark is not visible", UP_TO_3, 31, RECORD_STATUS, NOTHING),
    Rule("largest at the high watermark is not visible", UP_TO_5, LARGEST, RECORD_STATUS, NOTHING),
]


@pytest.mark.parametrize("rule", TIME_RULES, ids=lambda rule: rule.name)
def test_lookup_of_a_timestamp_follows_the_documented_rule(
    both: ComparedPartition, rule: Rule
) -> None:
    row = both.time(rule.partition, rule.target, rule.resolve)
    assert getattr(row, rule.column.partition(" ")[0]) == rule.value


def test_answers_at_backward_offsets_do_not_depend_on_other_queries(
    both: ComparedPartition,
) -> None:
    # Only the last batch is indexed: the entry for 3009 leads past its own batch, and the log ends
    # at 20.
    batches = [
        batch(base, 10, 5, range(time, time + 10))
        for base, time in ((0, 1000), (30, 3000), (10, 2000))
    ]
    rows = both.times(partition((0, batches), interval=300), [1000, 1010, 3009, 3010])
    assert [row.found_offset for row in rows] == [0, None, None, None]
