"""The lookups of a run: a `Lookups` for each thread, or one for each process of Spark."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kafka_index.execution.tasks import new_run_id
from kafka_index.lookup.divided_lookups import DividedLookups
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.lookups import Lookups, LookupSettings
from kafka_index.reading.fetched_indexes import IndexFolder

# With fewer, a thread answers alone.
_MIN_HELPERS = 2


class SharedLookups:
    """Opens the `Lookups` of each thread; a context manager that closes them.

    The indexes that the run builds are shared in the folder. So many threads as helpers answer for
    one that asks. Pickled, it is a `PackedLookups`.
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
