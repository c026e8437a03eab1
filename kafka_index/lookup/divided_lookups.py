"""Lookups by several threads: each answers the queries of its own partitions.

For remote logs, where a thread mostly waits: a query file of one split would leave the others idle.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kafka_index.execution import map_requests
from kafka_index.layout.integers import Longs
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.keys import Keys, integers, plain_array
from kafka_index.lookup.lookups import Lookups, LookupSettings
from kafka_index.reading.answers import Answers, Finding, Status


class DividedLookups(Lookups):
    """`Lookups` with one of them for each of two or more threads."""

    def __init__(self, inventory: Inventory, settings: LookupSettings, threads: int) -> None:
        super().__init__(inventory, settings)
        self._own = [Lookups(inventory, settings) for _ in range(threads)]

    def answer(
        self,
        topics: pa.Array | pa.ChunkedArray,
        partitions: pa.Array | pa.ChunkedArray,
        keys: Keys,
    ) -> Answers:
        """Answer queries, as `Lookups.answer` does."""
        numbers, _ = integers(plain_array(partitions))
        owners = self.inventory.codes(topics, numbers) % len(self._own)

        def answer(number: int) -> tuple[Longs, Answers]:
            rows = np.flatnonzero(owners == number)
            chosen = pa.array(rows)
            valid = None if keys.valid is None else keys.valid[rows]
            asked = Keys(keys.values[rows], valid, keys.specials)
            own = self._own[number]
            return rows, own.answer(topics.take(chosen), partitions.take(chosen), asked)

        answers = Answers.empty(len(keys), self.settings.resolve, Status.UNKNOWN_PARTITION)
        threads = len(self._own)
        for rows, found in map_requests(answer, range(threads), threads=threads, name="partitions"):
            answers.put(rows, found)
        return answers

    def end_offset(self, code: int) -> int | None:
        """Return where a partition ends, as `Lookups.end_offset` does."""
        return self._own[code % len(self._own)].end_offset(code)

    def drain_findings(self) -> list[Finding]:
        """Return the findings since the last call, each once."""
        return [finding for own in self._own for finding in own.drain_findings()]

    def close(self) -> None:
        """Close what is open; findings can still be drained."""
        for own in self._own:
            own.close()
