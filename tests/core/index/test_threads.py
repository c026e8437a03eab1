"""Readers of an index that another thread changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kafka_index.core.index.sparse_indexes import OffsetIndex
from tests.support.index_models import Kind
from tests.support.timeouts import TIMEOUT_SECONDS

SECONDS = 1.0
PAUSE_SECONDS = 0.0002
BASE = 45


def hammer(read: Callable[[], None], change: Callable[[], None]) -> None:
    """Read in three threads while this one changes; what they raise is raised here."""
    failures: list[BaseException] = []
    end = threading.Event()
    reads = [0, 0, 0]

    def go_on(reader: int) -> None:
        try:
            while not end.is_set():
                read()
                reads[reader] += 1
        except BaseException as error:  # noqa: BLE001, because it is raised by the test
            failures.append(error)

    threads = [threading.Thread(target=go_on, args=(reader,)) for reader in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    while (time.monotonic() < deadline or not all(reads)) and not failures:
        assert time.monotonic() < deadline + TIMEOUT_SECONDS, "a reader never got its turn"
        change()
        # Locks are not fair: without a pause, readers may wait for minutes on a loaded machine.
        time.sleep(PAUSE_SECONDS)
    end.set()
    for thread in threads:
        thread.join(timeout=TIMEOUT_SECONDS)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_lookups_are_correct_while_the_file_is_resized(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 20_000 * kind.entry_size)
    kind.add(index, 3000)
    sizes = iter(range(10**9))

    def read() -> None:
        assert [kind.found(index, number) for number in (0, 1500, 2999, 9999)] == [
            0,
            1500,
            2999,
            2999,
        ]

    def change() -> None:
        index.resize((3000 + 997 * next(sizes) % 15_000) * kind.entry_size)

    hammer(read, change)
    index.close()


def test_lookups_are_correct_while_entries_are_appended(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "x", BASE, 1 << 30, growing=True)
    targets = np.arange(BASE - 5, BASE + 300_000, 7)

    def read() -> None:
        least = index.entries
        offsets, positions = index.lookup_many(targets)
        assert (positions == 10 * (offsets - BASE)).all()
        known = (targets >= BASE) & (targets < BASE + least)
        assert (offsets[known] == targets[known]).all()

    def change() -> None:
        new = np.arange(index.entries, index.entries + 500)
        index.append_many(BASE + new, 10 * new)

    hammer(read, change)
    index.close()


def test_lookups_are_correct_during_truncation(kind: Kind, tmp_path: Path) -> None:
    index = kind.open(tmp_path / "x", 3000 * kind.entry_size)

    def read() -> None:
        assert 0 <= kind.found(index, 2000) < 30

    def change() -> None:
        kind.add(index, 30 - index.entries)
        index.truncate_to(BASE + 3)
        kind.add(index, 20)
        index.resize(29 * kind.entry_size)
        index.truncate()
        index.reset()

    hammer(read, change)
    index.close()


def test_upper_bounds_are_correct_while_the_file_is_resized(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "x", BASE, 8 * 5000)
    for number in range(2000):
        index.append(BASE + number, 10 * number)
    sizes = iter(range(10**9))

    def read() -> None:
        bound = index.fetch_upper_bound_offset(index.lookup(BASE + 700), 95)
        assert bound == (BASE + 710, 7100)

    def change() -> None:
        index.resize(8 * (2000 + next(sizes) % 2000))

    hammer(read, change)
    index.close()
