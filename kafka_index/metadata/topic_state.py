"""The records of an internal topic, collected and counted by their types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

from kafka_index.metadata.decoding import RecordName, UnknownRecordError
from kafka_index.metadata.topic_log import LogRecord


class TopicState(ABC):
    """Collects the records of an internal topic; `counts` has their number by type."""

    def __init__(self) -> None:
        self.counts: Counter[RecordName] = Counter()

    @abstractmethod
    def add(self, record: LogRecord) -> None:
        """Apply a record; raises `CorruptRecordError` if it cannot be read."""

    def _is_known(self, name_of: Callable[[], str]) -> bool:
        """Count a record under its name; return whether this release knows its type."""
        try:
            name = RecordName(name_of(), is_known=True)
        except UnknownRecordError as error:
            name = RecordName(error.name, is_known=False)
        self.counts[name] += 1
        return name.is_known
