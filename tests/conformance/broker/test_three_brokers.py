"""Three brokers under load are dumped, alive or killed, and restored; the load continues on them.

Every acknowledged record at or before the point that a restore claims is there once, in order and
with its content; groups begin within their logs; three brokers start on the outputs, their
replicas come in sync and are equal, and what is produced then is consumed. ``make campaign``
restores in all the ways below, other runs in one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kafka_jars import class_path, tool
from tests.support.campaign import sample_size
from tests.support.command_line import run_here
from tests.support.timeouts import wait_for

from .broker import BrokerFolders
from .client import Client
from .three_brokers import (
    COPIES,
    INTERNAL,
    NODES,
    PAYMENTS,
    PLAIN,
    PROFILES,
    TOPICS,
    Ledger,
    LoadRecord,
    ThreeBrokerCluster,
    await_load,
    committed,
    consumed,
    crc_of,
    create_topics,
    dumped,
    loading,
    replicas_differ,
)

NAMES = [topic.name for topic in TOPICS]
#: Logged where a directory, a partition or a record is not what a broker expects.
_SURPRISES = (
    *("FATAL", "stray", "Stopping serving", "ffline", "Deleting segments due to"),
    *("CorruptRecordException", "KafkaStorageException", "Could not find offset index file"),
)
#: The records of a poll at most, and so of a transaction of copies (``Load.consumer``).
_POLLED = 60
_RENAMED_SUFFIX = ".new"
_RECORDS = sample_size(1600, one_in=4)

Partition = tuple[str, int]


@dataclass(frozen=True)
class RestoreMethod:
    """A way to restore."""

    #: The dump: ``killed``, ``live``, or ``one`` of the live three.
    dump: str
    #: The cluster: ``same`` or ``new``.
    cluster: str
    #: ``time``, ``offsets``, or None for the whole dump.
    until: str | None = None
    renamed: bool = False

    def __str__(self) -> str:
        """The id of a test."""
        more = [f"until-{self.until}"] * bool(self.until) + ["renamed"] * self.renamed
        return "-".join([self.dump, self.cluster, *more])


WAYS = (
    RestoreMethod("killed", "same", "time"),
    RestoreMethod("killed", "same"),
    RestoreMethod("killed", "new"),
    RestoreMethod("killed", "new", "offsets"),
    RestoreMethod("killed", "new", "time", renamed=True),
    RestoreMethod("live", "same", "time"),
    RestoreMethod("live", "new", renamed=True),
    RestoreMethod("one", "new"),
)


@dataclass(frozen=True)
class Loaded:
    """A cluster that was dumped, and what it had acknowledged."""

    killed: list[BrokerFolders]
    live: list[BrokerFolders]
    #: All that was acknowledged, and what was when the live copy began.
    ledger: Ledger
    before_copy: Ledger
    #: Between the first record and the copy.
    time_ms: int

    def acknowledged(self, way: RestoreMethod) -> Ledger:
        """The records that were acknowledged before the dump was made."""
        return self.ledger if way.dump == "killed" else self.before_copy


@pytest.fixture(scope="module")
def loaded(broker_root: Path) -> Loaded:
    root, path = broker_root / "three", broker_root / "three.ledger"
    cluster = ThreeBrokerCluster(root)
    with cluster:
        create_topics(cluster, broker_root)
        with loading(cluster.bootstrap, path, "a-"):
            await_load(path, _RECORDS)
            time_ms, size = time.time_ns() // 1_000_000, path.stat().st_size
            await_load(path, _RECORDS, size)
            size = path.stat().st_size
            live = cluster.copy_to(broker_root / "three-live")
            await_load(path, _RECORDS // 2, path.stat().st_size)
            cluster.kill()
    return Loaded(dumped(root), live, Ledger.read(path), Ledger.read(path, size), time_ms)


def _restore(broker_root: Path, *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    report = broker_root / "report.json"
    report.unlink(missing_ok=True)
    command = ["restore", "--report", report, "--quiet", *arguments]
    result = subprocess.run(
        [sys.executable, "-m", "kafka_index", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
    )
    text = result.stdout + result.stderr
    assert result.returncode in (0, 1), text
    return result.returncode, [json.loads(line) for line in report.read_text().splitlines()], text


@dataclass(frozen=True)
class Restored:
    """The files, output and claims of restores."""

    root: Path
    rows: list[dict[str, Any]]
    texts: list[str]
    codes: set[int]


@dataclass(frozen=True)
class Limits:
    """Up to where a restore claims to have everything."""

    time_ms: int | None = None
    offsets: Mapping[Partition, int] | None = None

    def holds(self, partition: Partition, record: LoadRecord) -> bool:
        """Whether a record is at or before that point."""
        if self.time_ms is not None:
            return record.timestamp_ms <= self.time_ms
        return self.offsets is None or record.offset < self.offsets.get(partition, 1 << 62)


def _limits(loaded: Loaded, way: RestoreMethod) -> Limits:
    if way.until == "time":
        return Limits(loaded.time_ms)
    if way.until is None:
        return Limits()
    records = loaded.acknowledged(way).acknowledged()
    return Limits(
        offsets={
            partition: found[len(found) // 2].offset
            for partition, found in records.items()
            if partition[0] == PLAIN
        }
    )


def _until(limits: Limits, broker_root: Path) -> list[str]:
    if limits.time_ms is not None:
        return ["--until", f"ms:{limits.time_ms}", "--clamp-groups"]
    if limits.offsets is None:
        return []
    path = broker_root / "until.csv"
    path.write_text("".join(f"{t},{n},{at}\n" for (t, n), at in limits.offsets.items()))
    return ["--until", str(path), "--clamp-groups"]


def _restored(
    loaded: Loaded, way: RestoreMethod, broker_root: Path, limits: Limits
) -> tuple[Restored, ThreeBrokerCluster]:
    root = broker_root / "restored"
    homes = loaded.killed if way.dump == "killed" else loaded.live
    more = _until(limits, broker_root)
    runs = []
    if way.cluster == "same":
        more = [word for word in more if word != "--clamp-groups"]
        for home in homes:
            target = BrokerFolders(root / home.root.name)
            target.root.mkdir(parents=True)
            runs.append(
                _restore(
                    broker_root,
                    *("--input", home.data, home.metadata, "--cluster", "same"),
                    *("--output", target.data, "--metadata-output", target.metadata),
                    *("--all-brokers-restored", *more),
                )
            )
        cluster = ThreeBrokerCluster(root)
    else:
        cluster = ThreeBrokerCluster(root)
        given = homes[:1] if way.dump == "one" else homes
        inputs = [path for home in given for path in (home.data,)]
        if way.renamed:
            more += [
                word
                for name in (PLAIN, COPIES)
                for word in ("--rename", f"{name}={name}{_RENAMED_SUFFIX}")
            ]
        seeds = [word for home in cluster.homes for word in ("--seed", home.metadata)]
        output = ("--output", cluster.homes[0].data)
        runs.append(
            _restore(broker_root, "--input", *inputs, given[0].metadata, *output, *seeds, *more)
        )
    codes = {code for code, _, _ in runs}
    rows = [row for _, found, _ in runs for row in found]
    return Restored(root, rows, [text for *_, text in runs], codes), cluster


# Three brokers and their load, which need a quiet machine for minutes.
@pytest.mark.skipif(sample_size(10) != 10, reason="make campaign restores these")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_producers_and_consumers_continue_on_the_restored_cluster(
    broker_root: Path, loaded: Loaded, way: RestoreMethod
) -> None:
    folder = broker_root / f"three-{way}"
    folder.mkdir()
    suffix = _RENAMED_SUFFIX if way.renamed else ""
    names = {name: name + suffix if name in (PLAIN, COPIES) else name for name in NAMES}
    limits = _limits(loaded, way)
    restored, cluster = _restored(loaded, way, folder, limits)
    _check_lost(loaded, way, restored, limits)

    with cluster:
        with Client(cluster.bootstrap, folder) as client:
            every = [*names.values(), *INTERNAL]
            if way.cluster == "new":
                client.reassign(NODES, every)
            client.await_in_sync(len(NODES), every)
        groups = committed(cluster.bootstrap)
        path = folder / "before"
        before = {
            isolation: consumed(cluster.bootstrap, path, isolation, list(names.values()))
            for isolation in ("read_uncommitted", "read_committed")
        }
        _check_records(loaded, way, before, names, limits)
        _check_groups(loaded, way, groups, before, names, limits)

        if way.renamed and way.until:
            runbook = (folder / "report.json.runbook.txt").read_text()
            for partition in _abort_open_transactions(cluster.bootstrap, (PLAIN, COPIES)):
                assert re.search(rf"is open at the end of .*{re.escape(partition)}", runbook)
        path = folder / "continued"
        with loading(cluster.bootstrap, path, "a-b-" if way.renamed else "b-", suffix) as end:
            await_load(path, _RECORDS // 2)
            end()
        after = consumed(
            cluster.bootstrap, folder / "after", "read_committed", list(names.values())
        )
        _check_continued(before["read_committed"], Ledger.read(path), after)
        if way.until is None and not way.renamed:
            _check_copies(after, committed(cluster.bootstrap))
        homes = cluster.homes
        alike = [name for name in (*names.values(), *INTERNAL) if name != PROFILES]
        wait_for(lambda: not replicas_differ(homes, alike), 20, "replicas are not alike")
    assert cluster.unexpected_log_lines(_SURPRISES) == []
    shutil.rmtree(folder)


def test_groups_are_not_clamped_in_one_of_several_replicas(
    broker_root: Path, loaded: Loaded
) -> None:
    home, output = loaded.killed[0], broker_root / "not-clamped"
    command = ["restore", "--input", home.data, home.metadata, "--cluster", "same"]
    more = ["--output", output, "--metadata-output", f"{output}-metadata", "--all-brokers-restored"]

    result = run_here(*map(str, (*command, *more, "--clamp-groups")))

    assert result.returncode == 2
    assert "several" in result.stderr
    assert not output.exists()


def _check_lost(loaded: Loaded, way: RestoreMethod, restored: Restored, limits: Limits) -> None:
    """No record that was acknowledged before the dump is in a range that is called lost."""
    acknowledged = loaded.acknowledged(way).acknowledged()
    for row in restored.rows:
        if row["status"] == "lost" and row["topic"] in NAMES:
            partition = (row["topic"], row["partition"])
            first, last = row["first_offset"], row["last_offset"]
            result = [one for one in acknowledged[partition] if first <= one.offset <= last]
            assert [one for one in result if limits.holds(partition, one)] == [], row
    statuses = {"restored", "salvaged", "lost", "clamped"}
    # Groups keep their offsets under the old name of a topic.
    statuses |= {"not_renamed"} if way.renamed else set()
    assert {row["status"] for row in restored.rows} <= statuses


def _check_records(
    loaded: Loaded,
    way: RestoreMethod,
    before: Mapping[str, Ledger],
    names: Mapping[str, str],
    limits: Limits,
) -> None:
    ledger = loaded.acknowledged(way)
    aborted = {one.id for found in loaded.ledger.records["abort"].values() for one in found}
    for isolation, found in before.items():
        for (topic, number), records in ledger.acknowledged().items():
            got = found.records["got"][names[topic], number]
            assert got == sorted(got)
            assert all(one.crc == crc_of(one.id) for one in got)
            assert len({one.offset for one in got}) == len(got)
            # The cleaner keeps the last record of a key, which may be after the point.
            kept = records if topic != PROFILES else _last_of_keys(records)
            expected = [one for one in kept if limits.holds((topic, number), one)]
            assert expected or topic == PROFILES
            if limits.offsets is not None:
                # The batch that reaches the offset is not there as a whole.
                end = found.ends[names[topic], number]
                assert end <= limits.offsets.get((topic, number), end)
                beyond = [one for one in expected if one.offset >= end]
                assert len({one.timestamp_ms for one in beyond}) <= 1
                expected = [one for one in expected if one.offset < end]
            missing = [one for one in expected if one not in set(got)]
            if isolation == "read_committed" and topic in (PAYMENTS, COPIES) and way.until:
                # The transaction that was open at the point: one producer, so the last records.
                assert missing == expected[len(expected) - len(missing) :], topic
                rounds = {one.id.rpartition("-")[0] for one in missing}
                assert len(rounds) <= 1 if topic == PAYMENTS else len(missing) <= _POLLED, topic
            else:
                assert missing == [], (topic, isolation)
            if limits.time_ms is not None:
                assert all(one.timestamp_ms <= limits.time_ms for one in got)
            if isolation == "read_committed":
                assert {one.id for one in got if topic == PAYMENTS} & aborted == set()
                assert topic == PROFILES or len({one.id for one in got}) == len(got)


def _last_of_keys(records: Sequence[LoadRecord]) -> list[LoadRecord]:
    return list({record.id.rpartition("-")[2]: record for record in records}.values())


def _check_groups(
    loaded: Loaded,
    way: RestoreMethod,
    groups: Mapping[tuple[str, str, int], int],
    before: Mapping[str, Ledger],
    names: Mapping[str, str],
    limits: Limits,
) -> None:
    """A group begins where it had committed, or at the end of a log that ends before."""
    ends = before["read_uncommitted"].ends
    assert groups
    for (group, topic, number), offset in groups.items():
        # The offsets of a renamed topic stay under its old name.
        is_there = (topic, number) in ends
        assert is_there or names[topic] != topic
        assert not is_there or offset <= ends[topic, number], (group, topic, number)
    for (group, topic, number), commits in loaded.acknowledged(way).commits.items():
        if names[topic] != topic:
            continue
        limit = limits.time_ms
        known = [at for at, _, ended in commits if limit is None or ended <= limit]
        if known:
            least = min(known[-1], ends[topic, number])
            assert groups[group, topic, number] >= least, (group, topic, number)
        later = loaded.ledger.commits[group, topic, number]
        if limit is not None:
            most = max((at for at, began, _ in later if began <= limit), default=0)
            assert groups.get((group, topic, number), 0) <= most, (group, topic, number)


def _abort_open_transactions(bootstrap: str, topics: Iterable[str]) -> list[str]:
    """Abort the open transactions of renamed topics with kafka-transactions.sh.

    The coordinators know only the old topic names. Returns the partitions of the transactions.
    """

    def run_tool(command: str, *arguments: object) -> str:
        java = (tool("java"), "-cp", class_path(), "org.apache.kafka.tools.TransactionsCommand")
        words = (*java, "--bootstrap-server", bootstrap, command, *map(str, arguments))
        result = subprocess.run(words, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    aborted = []
    for topic in topics:
        for number in range(2):
            partition = ("--topic", f"{topic}{_RENAMED_SUFFIX}", "--partition", number)
            header, *rows = map(str.split, run_tool("describe-producers", *partition).splitlines())
            column = header.index("CurrentTransactionStartOffset")
            for start_offset in (row[column] for row in rows if row[column] != "None"):
                run_tool("abort", *partition, "--start-offset", start_offset)
                aborted.append(f"{topic}{_RENAMED_SUFFIX}-{number}")
    return aborted


def _check_continued(before: Ledger, ledger: Ledger, after: Ledger) -> None:
    """All earlier records are there, and all acknowledged ones follow them, once."""
    aborted = {one.id for found in ledger.records["abort"].values() for one in found}
    for partition, got in after.records["got"].items():
        assert len({one.offset for one in got}) == len(got)
        assert all(one.crc == crc_of(one.id) for one in got)
        assert {one.id for one in got if one.id.startswith("b-")} & aborted == set()
        if partition[0] != PROFILES:
            assert set(before.records["got"][partition]) <= set(got), partition
    for partition, found in ledger.acknowledged().items():
        got = after.records["got"][partition]
        records = _last_of_keys(found) if partition[0] == PROFILES else found
        missing = [record for record in records if record not in set(got)]
        assert missing == [], partition
        last = max((one.offset for one in before.records["got"][partition]), default=-1)
        assert min(record.offset for record in records) > last, partition


def _check_copies(after: Ledger, groups: Mapping[tuple[str, str, int], int]) -> None:
    """The group whose offsets are in transactions has copied each record before them once."""
    for number in range(2):
        reached = groups["copiers", PLAIN, number]
        plain = [
            f"of {one.id}" for one in after.records["got"][PLAIN, number] if one.offset < reached
        ]
        copies = [one.id for one in after.records["got"][COPIES, number]]
        assert copies == plain
