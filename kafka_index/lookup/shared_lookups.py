"""The lookups of a run: a `Lookups` for each thread, or one for each process of Spark.

Where a thread mostly waits, for remote logs, several answer together, each for its own partitions:
a query file of one split would leave the others idle.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from kafka_index.execution import map_requests
from kafka_index.execution.tasks import new_run_id
from kafka_index.layout.integers import Longs
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.keys import Keys, integers
from kafka_index.lookup.lookups import Lookups, LookupSettings
from kafka_index.reading.answers import Answers, Finding, Status
from kafka_index.reading.fetched_indexes import IndexFolder

# With fewer, a thread answers alone.
_MIN_HELPERS = 2


class SharedLookups:
    """Opens the `Lookups` of each thread; a context manager that closes them.

    The indexes that the run builds are shared in the folder. So many threads as helpers answer for
    each that asks. Pickled, it is a `PackedLookups`.
    """

    def __init__(
        self,
        inventory: Inventory,
        settings: LookupSettings,
        folder: IndexFolder | None = None,
        *,
        helpers: int = 1,
    ) -> None:
        self.inventory = inventory
        self.settings = settings
        self._folder = folder
        self._helpers = helpers
        self._here = threading.local()
        self._opened: list[Lookups] = []
        self._packed: PackedLookups | None = None

    def __enter__(self) -> Self:
        self.inventory.fetched_indexes.share(self._folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.inventory.fetched_indexes.share(None)
        for each in self._opened:
            each.close()

    def __reduce__(self) -> tuple[type[PackedLookups], tuple[object, ...]]:
        """Be the same `PackedLookups` whenever it is pickled."""
        if self._packed is None:
            # An inventory that is shared is not the driver's alone.
            inventory = pickle.dumps(self.inventory)
            self._packed = PackedLookups(new_run_id(), self.settings, inventory, self._folder)
        packed = self._packed
        return PackedLookups, (packed.run_id, packed.settings, packed.inventory, packed.folder)

    def open(self) -> Lookups:
        """Return the lookups of this thread."""
        lookups: Lookups | None = getattr(self._here, "lookups", None)
        if lookups is None:
            if self._helpers < _MIN_HELPERS:
                lookups = Lookups(self.inventory, self.settings)
            else:
                lookups = DividedLookups(self.inventory, self.settings, self._helpers)
            self._here.lookups = lookups
            self._opened.append(lookups)
        return lookups


# The lookups of this process, by run, one at most: Spark reuses a worker for many tasks, and what
# one has opened stays open for the next.
_open: dict[str, Lookups] = {}


@dataclass(frozen=True, slots=True)
class PackedLookups:
    """Makes the `Lookups` of a run, once in every process of Spark.

    The inventory is pickled: it can be large, and most tasks need not unpack it. No two runs share
    a run id.
    """

    run_id: str
    settings: LookupSettings
    inventory: bytes
    folder: IndexFolder | None = None

    def open(self) -> Lookups:
        """Return the lookups of this process, which stay open after the task."""
        if self.run_id not in _open:
            while _open:
                _open.popitem()[1].close()
            inventory: Inventory = pickle.loads(self.inventory)  # noqa: S301, ours
            inventory.fetched_indexes.share(self.folder)
            _open[self.run_id] = Lookups(inventory, self.settings)
        return _open[self.run_id]


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
        numbers, _ = integers(partitions)
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
