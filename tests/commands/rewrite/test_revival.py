"""Keys that dropping records would bring back, for readers of both isolation levels."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import kafka_index
from kafka_index.commands.rewrite.job import RewriteSettings, match, plan_rewrite
from kafka_index.core.log.filter.selection import Condition, Selection
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.support.campaign import sample_size
from tests.support.command_line import run_here
from tests.support.record_tables import write_partition
from tests.support.segments import marker

#: Of the transactions in a log: committed, aborted, or still open; "" for no transaction.
COMMIT, ABORT, OPEN, PLAIN = "commit", "abort", "open", ""
_LEVELS = ("read_uncommitted", "read_committed")


@dataclass(frozen=True)
class Written:
    """A record of a random log: its transaction is a producer and a number."""

    offset: int
    key: bytes
    outcome: str
    transaction: tuple[int, int] | None


class Log:
    """A log that is written batch by batch."""

    def __init__(self) -> None:
        self.data = b""
        self.records: list[Written] = []
        self._end = 0
        self._sequences: Counter[int] = Counter()
        self._began: dict[int, int] = {}
        self._outcomes: dict[tuple[int, int], str] = {}

    def append(self, key: bytes, producer: int | None = None, value: bytes | None = b"v") -> None:
        fields = BatchFields(leader_epoch=0)
        transaction = None
        if producer is not None:
            transaction = producer, self._began.setdefault(producer, self._end)
            self._outcomes[transaction] = OPEN
            fields = BatchFields(
                leader_epoch=0,
                producer_id=producer,
                producer_epoch=1,
                base_sequence=self._sequences[producer],
                is_transactional=True,
            )
            self._sequences[producer] += 1
        self.data += write_record_batch([Record(5, key, value)], self._end, fields)
        self.records.append(Written(self._end, key, PLAIN, transaction))
        self._end += 1

    def end(self, producer: int, outcome: str) -> None:
        if producer in self._began:
            self._outcomes[producer, self._began.pop(producer)] = outcome
            self.data += marker(self._end, producer, 1, commit=outcome == COMMIT)
            self._end += 1

    def written(self) -> list[Written]:
        return [
            record
            if record.transaction is None
            else Written(
                record.offset, record.key, self._outcomes[record.transaction], record.transaction
            )
            for record in self.records
        ]


def revives(records: Sequence[Written], dropped: set[int]) -> bool:
    """Whether any reader sees an older record of a key as its newest, however transactions end."""
    opened = sorted({record.transaction for record in records if record.outcome == OPEN}, key=str)
    views: list[Iterable[Written]] = [records]
    for committed in itertools.product([True, False], repeat=len(opened)):
        ends = dict(zip(opened, committed, strict=True))
        views.append(
            [
                record
                for record in records
                if record.outcome in (PLAIN, COMMIT)
                or (record.outcome == OPEN and ends[record.transaction])
            ]
        )
    for view in views:
        before = {each.key: each.offset for each in view}
        after = {each.key: each.offset for each in view if each.offset not in dropped}
        if any(offset < before[key] for key, offset in after.items()):
            return True
    return False


def is_refused(root: Path, log: Log, dropped: set[int]) -> bool:
    write_partition(root, {0: log.data})
    offsets = ", ".join(map(str, sorted(dropped)))
    condition = Condition.parse(f"offset IN ({offsets})")
    plans, _ = plan_rewrite([str(root)], None)
    result = match(plans[0], "test", settings=RewriteSettings(Selection(condition=condition)))
    assert result.error is None
    assert result.match is not None
    assert result.match.dropped == len(dropped)
    if result.match.revived is not None:
        newest, older = result.match.revived
        assert newest in dropped
        assert older not in dropped
        assert older < newest
    return result.match.revived is not None


def random_log(draw: random.Random, *, leaves_open: bool) -> Log:
    log = Log()
    for _ in range(draw.randrange(2, 14)):
        action = draw.random()
        producer = draw.choice([7, 8])
        if action < 0.25:
            log.end(producer, draw.choice([COMMIT, ABORT]))
        else:
            key, value = draw.choice([b"a", b"b"]), draw.choice([b"v", None])
            log.append(key, draw.choice([None, producer]), value)
    if not leaves_open:
        for producer in (7, 8):
            log.end(producer, draw.choice([COMMIT, ABORT]))
    return log


@pytest.mark.parametrize("leaves_open", [False, True])
def test_rewrite_that_makes_an_older_value_reappear_is_rejected(
    tmp_path: Path, *, leaves_open: bool
) -> None:
    draw = random.Random(41)
    refusals = needless = 0
    for _ in range(sample_size(150, one_in=3)):
        log = random_log(draw, leaves_open=leaves_open)
        records = log.written()
        if not records:
            continue
        offsets = [record.offset for record in records]
        dropped = set(draw.sample(offsets, draw.randrange(1, len(offsets) + 1)))
        found, expected = is_refused(tmp_path, log, dropped), revives(records, dropped)
        refusals += expected
        needless += found and not expected
        assert found >= expected, (records, dropped)
        if not leaves_open:
            assert found == expected, (records, dropped)
    assert refusals
    # The outcomes of open transactions are taken one by one, not together.
    assert needless <= refusals // 10


@pytest.mark.parametrize(
    ("history", "refused"),
    [
        ([(PLAIN, False), (PLAIN, True), (ABORT, False)], True),
        ([(PLAIN, False), (PLAIN, True), (COMMIT, False)], False),
        ([(PLAIN, False), (PLAIN, True), (OPEN, False)], True),
        ([(PLAIN, False), (COMMIT, True), (ABORT, False)], True),
        # Only readers of uncommitted records have seen what is dropped, or what stays.
        ([(PLAIN, False), (ABORT, True)], True),
        ([(ABORT, False), (PLAIN, True)], True),
        ([(OPEN, False), (PLAIN, True)], True),
        ([(PLAIN, False), (OPEN, True)], True),
        ([(PLAIN, True), (ABORT, False)], False),
        ([(ABORT, True), (PLAIN, False)], False),
        ([(PLAIN, False), (PLAIN, True), (ABORT, False), (PLAIN, False)], False),
    ],
)
@pytest.mark.parametrize("value", [b"v", None])
def test_remaining_record_hides_an_older_value_only_if_readers_see_it(
    tmp_path: Path, history: list[tuple[str, bool]], value: bytes | None, *, refused: bool
) -> None:
    log = Log()
    for number, (outcome, is_dropped) in enumerate(history):
        producer = number + 1 if outcome else None
        log.append(b"k", producer, value if is_dropped else b"v")
        if outcome in (COMMIT, ABORT):
            log.end(number + 1, outcome)
    data = [record.offset for record in log.records]
    dropped = {offset for offset, (_, is_dropped) in zip(data, history, strict=True) if is_dropped}

    assert is_refused(tmp_path, log, dropped) == refused


def test_rewrite_is_rejected_exactly_if_readers_of_either_isolation_level_see_old_values(
    tmp_path: Path,
) -> None:
    draw = random.Random(17)
    outcomes = set()
    for number in range(sample_size(30, one_in=4)):
        log = random_log(draw, leaves_open=False)
        dropped = [record.offset for record in log.records if draw.random() < 0.4]
        if not 0 < len(dropped) < len(log.records):
            continue
        source, output = tmp_path / f"in-{number}", tmp_path / f"out-{number}"
        write_partition(source, {0: log.data})
        where = f"offset IN ({', '.join(map(str, dropped))})"
        command = ("rewrite", "--input", source, "--output", output, "--drop-where", where)

        code = run_here(*command).returncode

        if code:
            assert run_here(*command, "--allow-revive").returncode == 0
        levels = [_reappears(source, output, level) for level in _LEVELS]
        assert code == (2 if any(levels) else 0), where
        outcomes.add((*levels,))
    assert len(outcomes) > 2


def _reappears(source: Path, output: Path, isolation: str) -> bool:
    before, after = (
        dict(zip(table["key"].to_pylist(), table["offset"].to_pylist(), strict=True))
        for table in (
            kafka_index.read_records(path, isolation=isolation).read_all()
            for path in (source, output)
        )
    )
    return any(offset < before[key] for key, offset in after.items())
