"""Judging ``leader-epoch-checkpoint`` files by the epochs of the batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kafka_index.dump.small_files import read_text
from kafka_index.errors import InputError, InvalidEpochError, KafkaIndexError
from kafka_index.layout.names import LEADER_EPOCH_CHECKPOINT, TopicPartition
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.verification.findings import FileClass, FileKind, Finding, Judgement
from kafka_index.verification.index_files import IDENTICAL
from kafka_index.verification.segment import EpochRun


def epoch_findings(
    partition: TopicPartition,
    directory: str,
    runs: Sequence[EpochRun],
    offsets: tuple[int, int | None],
    *,
    has_indexes: bool,
) -> Iterator[Finding]:
    """Yield the row of the checkpoint of a partition; none if it is not missed.

    `runs` are those of its batches, in order, and `offsets` the start and the end of the log, None
    if unknown. Without index files it is a dump of logs alone.
    """
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    finding = Finding(
        partition.topic, partition.partition, None, path, FileKind.EPOCHS, FileClass.MISSING
    )
    try:
        text = read_text(path)
    except KafkaIndexError as error:
        yield finding.unreadable(error)
        return
    if text is not None:
        yield finding.judged(_judge_epochs(text, path, runs, *offsets))
    elif runs:
        effect = "Followers and consumers cannot compare epochs: divergence is not found."
        yield replace(finding, harmful=has_indexes, effect=effect)


def _judge_epochs(
    text: str,
    path: str,
    runs: Iterable[EpochRun],
    log_start_offset: int,
    end_offset: int | None,
) -> Judgement:
    """Judge the text of a checkpoint; epochs before the start of the log are not kept."""
    try:
        cache = LeaderEpochCache.from_text(text, path=path)
    except (InputError, InvalidEpochError) as error:
        return Judgement(
            FileClass.CORRUPT,
            harmful=True,
            expected=error.expected,
            found=": ".join(filter(None, (error.message, error.found))),
            effect="A broker takes the data directory offline, or exits.",
        )
    wanted = LeaderEpochCache()
    for run in runs:
        if run.last_offset < log_start_offset:
            continue
        wanted.assign_from_batch(run.epoch, max(run.first_offset, log_start_offset))
        for offset in (max(run.first_offset, log_start_offset), run.last_offset):
            found = cache.epoch_for_offset(offset)
            if found == run.epoch:
                continue
            return Judgement(
                FileClass.INCOMPLETE if found is None else FileClass.CORRUPT,
                harmful=True,
                expected=f"epoch {run.epoch} at offset {offset}",
                found="no epoch" if found is None else f"epoch {found}",
                effect="Followers and consumers that compare epochs truncate at a wrong offset, "
                "or not at all.",
            )
    if cache.entries == wanted.entries and text == wanted.text():
        return IDENTICAL
    late = [
        at for at, entry in enumerate(cache.entries) if _is_late(entry.start_offset, end_offset)
    ]
    if late:
        entry = cache.entries[late[0]]
        return Judgement(
            FileClass.STALE,
            entry=late[0],
            expected=f"a start offset below {end_offset}",
            found=f"epoch {entry.epoch} from offset {entry.start_offset}",
            effect="A broker drops the epochs that start at the log end or after it.",
        )
    return Judgement(FileClass.VALID, found="the epochs of all batches, and epochs without records")


def _is_late(start_offset: int, end_offset: int | None) -> bool:
    return end_offset is not None and start_offset > end_offset
