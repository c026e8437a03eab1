"""What every lookup of a run shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kafka_index.config import LogConfig
from kafka_index.reading.answers import Resolve

DEFAULT_MAX_OPEN_SEGMENTS = 256


class By(Enum):
    """What the queries ask for."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"

    @property
    def column(self) -> str:
        """The column of a query that holds it."""
        return self.value

    @property
    def default_resolve(self) -> Resolve:
        """The level of a lookup that says no other."""
        return Resolve.BATCH if self is By.OFFSET else Resolve.RECORD


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """How to look up.

    Parameters
    ----------
    by : By
        What the queries ask for.
    resolve : Resolve
        How far to go.
    config : LogConfig
        Kafka's settings, by topic, for indexes that are missing.
    max_open_segments : int
        Segments that one `Lookups` keeps open.
    """

    by: By
    resolve: Resolve
    config: LogConfig = field(default_factory=LogConfig)
    max_open_segments: int = DEFAULT_MAX_OPEN_SEGMENTS
