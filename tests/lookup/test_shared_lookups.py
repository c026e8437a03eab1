"""The lookups of a run: what is open in a thread, and in a process of Spark."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

from kafka_index.lookup import By, LookupSettings, collect_inventory
from kafka_index.lookup.shared_lookups import PackedLookups, SharedLookups
from kafka_index.reading.answers import Resolve
from tests.support.command_line import DUMP

SETTINGS = LookupSettings(By.OFFSET, Resolve.BATCH)


def shared() -> SharedLookups:
    return SharedLookups(collect_inventory([str(DUMP)]), SETTINGS)


def packed(lookups: SharedLookups) -> PackedLookups:
    found: PackedLookups = pickle.loads(pickle.dumps(lookups))  # noqa: S301, its own
    return found


def test_each_thread_has_its_own() -> None:
    with shared() as lookups, ThreadPoolExecutor(1) as pool:
        here = lookups.open()
        assert lookups.open() is here
        assert pool.submit(lookups.open).result() is not here


def test_what_a_process_has_open_stays_open_for_the_run_and_no_longer() -> None:
    with shared() as lookups, shared() as others:
        opened = packed(lookups).open()
        assert packed(lookups).open() is opened
        assert packed(others).open() is not opened
        assert packed(lookups).open() is not opened
