"""What becomes of the questions to a segment: answers, or what stands in their way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import CorruptLogError, KafkaIndexError, is_retriable
from kafka_index.kernels.batch_header import AT_END, damage_at
from kafka_index.reading.answers import SEGMENT_BASE_OFFSET, Answers, Longs, Status
from kafka_index.reading.findings import UNREADABLE, Finding, Findings
from kafka_index.reading.open_log import OpenLog
from kafka_index.reading.segment_walk import Located
from kafka_index.records.batch_source import ScanStop
from kafka_index.records.record_decoding import read_records
from kafka_index.storage import SegmentFile


class SegmentVerdicts:
    """Turns what was located in a segment into answers, and tells of damage.

    Parameters
    ----------
    segment : SegmentFile
        The segment.
    log : OpenLog
        Its log.
    findings : Findings
        Where it tells.
    """

    def __init__(self, segment: SegmentFile, log: OpenLog, findings: Findings) -> None:
        self._file = segment
        self._log = log
        self._findings = findings

    def settle(
        self, answers: Answers, rows: Longs, located: Located, damage: ScanStop | None
    ) -> NDArray[np.bool_]:
        """Take over what was located.

        Parameters
        ----------
        answers : Answers
            Filled.
        rows : ndarray of int64, shape (n,)
            Where the answers to the n questions go.
        located : Located
            What is known of them.
        damage : ScanStop, optional
            What hides the end of the segment.

        Returns
        -------
        ndarray of bool, shape (n,)
            The questions that nothing was found for, up to the segment's end.
        """
        at_end: NDArray[np.bool_] = located.batches == AT_END
        damaged = located.batches < AT_END
        located.values[SEGMENT_BASE_OFFSET] = self._file.base_offset
        if not (at_end.any() or damaged.any()):
            for column, values in enumerate(located.values):
                # Half the time of indexing both at once.
                answers.values[column][rows] = values
            answers.status[rows] = Status.FOUND
            return at_end
        found = ~(at_end | damaged)
        answers.status[rows[found]] = Status.FOUND
        answers.values[:, rows[found]] = located.values[:, found]
        for at in np.unique(located.batches[damaged]):
            self.give_up(answers, rows[located.batches == at], int(damage_at(at)))
        if at_end.any() and damage is not None:
            # Nobody knows what is behind the damage.
            self.give_up(answers, rows[at_end], damage.position_bytes)
            return np.zeros_like(at_end)
        return at_end

    def give_up(self, answers: Answers, rows: Longs, position_bytes: int) -> None:
        """Answer that damage at a position keeps questions from being answered."""
        if len(rows):
            answers.status[rows] = Status.UNREADABLE
            reason = self.reason_at(position_bytes)
            self.notice(UNREADABLE, self._file.log_path, reason, position_bytes, len(rows))

    def fail(self, answers: Answers, rows: Longs, error: KafkaIndexError) -> None:
        """Answer that an error keeps questions from being answered."""
        if len(rows):
            answers.status[rows] = Status.UNREADABLE
            path = error.path or self._file.log_path
            self.notice(
                UNREADABLE,
                path,
                error.message,
                error.position_bytes,
                len(rows),
                retriable=is_retriable(error),
            )

    def reason_at(self, position_bytes: int) -> str:
        """Say why a batch cannot be read."""
        stop = self._log.stop_at(position_bytes)
        if stop is not None:
            return stop.text
        try:
            fault = read_records(self._log.batch(position_bytes)).fault
        except CorruptLogError as error:
            fault = str(error)
        return fault or "the batch cannot be read"

    def notice(
        self,
        kind: str,
        path: str,
        reason: str,
        position_bytes: int | None = None,
        queries: int = 0,
        *,
        retriable: bool = False,
    ) -> None:
        """Tell of something about the segment."""
        self._findings.add(
            Finding(
                self._file.topic,
                self._file.partition,
                self._file.base_offset,
                path,
                kind,
                reason,
                position_bytes,
                queries,
                retriable,
            )
        )
