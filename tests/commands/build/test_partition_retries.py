"""Partitions whose publishing is cut short at any step, and done again from the same rows.

That is what a Spark task does which is tried again: its second attempt finds some of the first
one's files in place, some still waiting.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.log.recovery import publish
from kafka_index.core.log.recovery.publish import publish_partitions
from kafka_index.core.log.recovery.scan import stage_segments
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.output.publish import sweep
from tests.support.campaign import sample_size
from tests.support.segments import batch
from tests.support.transactional_logs import built_files, log_path, segments, write

FOLDER = "pay.x-y-0"
STATE_ALONE = frozenset((BuildOutput.TXN_INDEX, BuildOutput.SNAPSHOT, BuildOutput.EPOCHS))
_Files = dict[str, bytes]


class _Killed(BaseException):
    """Ends an attempt as SIGKILL does: nothing is cleaned up behind it."""


class _Killer:
    """Ends an attempt at one of the steps that others see: a rename, or a removal."""

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.left is None or event not in {"os.rename", "os.remove"}:
            return
        if event == "os.remove" and str(arguments[0]).endswith(".tmp"):
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise _Killed

    @contextmanager
    def after(self, steps: int) -> Iterator[None]:
        self.left = steps
        try:
            yield
        except _Killed:
            return
        finally:
            self.left = None


_KILLER = _Killer()
#: Every step in the campaign.
_STRIDE = 3 // sample_size(3, one_in=3)


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "GROUP_SEGMENTS", 2)


class _Place:
    """A partition that was built once, and whose logs have changed since."""

    def __init__(self, root: Path, logs: dict[int, bytes], settings: BuildSettings) -> None:
        self.root = root
        self.data = root / "data"
        self.out = self.data if settings.in_place else root / "out"
        self.settings = settings
        if not settings.in_place:
            self.settings = replace(settings, target_root=str(self.out))
        write(self.data / FOLDER, segments(len(logs), value_size=90, turned=True))
        self.publish(self.stage("old"), "old")
        self.before = built_files(self.out)
        write(self.data / FOLDER, logs, day=1)

    def stage(self, attempt_id: str) -> list[StagedSegment]:
        listed = list_dump([str(self.data)], topics=None).segments
        return list(stage_segments(listed, self.settings, attempt_id=attempt_id))

    def publish(self, staged: list[StagedSegment], attempt_id: str) -> list[SegmentReport]:
        return list(publish_partitions([staged], self.settings, attempt_id=attempt_id))

    def swept(self) -> _Files:
        sweep([str(self.out / FOLDER)], run_id=None)
        return built_files(self.out)


def _settings(
    *, in_place: bool, outputs: frozenset[BuildOutput] = frozenset(BuildOutput)
) -> BuildSettings:
    return BuildSettings(
        target_root=None if in_place else "", outputs=outputs, force=True, run_id="run"
    )


def _told(rows: list[SegmentReport]) -> list[tuple[object, ...]]:
    return [
        (row.segment_base_offset, row.status, row.reason, row.aborted_txns, row.producers)
        for row in rows
    ]


def _check_every_index(found: _Files, builds: tuple[_Files, _Files]) -> None:
    """An index is beside the time index and the transaction index of its own build."""
    for name in found:
        if name.endswith(".index"):
            parts = [
                name,
                name.replace(".index", ".timeindex"),
                name.replace(".index", ".txnindex"),
            ]
            together = [found.get(part) for part in parts]
            assert together in [[build.get(part) for part in parts] for build in builds], name


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "outputs", [frozenset(BuildOutput), STATE_ALONE], ids=["all", "state alone"]
)
@pytest.mark.parametrize("is_cut", [False, True], ids=["sound", "with a torn end"])
def test_publication_killed_at_any_step_is_finished_by_the_next_attempt(
    tmp_path: Path, outputs: frozenset[BuildOutput], *, in_place: bool, is_cut: bool
) -> None:
    settings = _settings(in_place=in_place, outputs=outputs)
    logs = segments(4)
    if is_cut:
        second = sorted(logs)[1]
        logs[second] = logs[second][:-10]
    whole = _Place(tmp_path / "whole", logs, settings)
    expected_rows = _told(whole.publish(whole.stage("scan"), "only"))
    expected = whole.swept()
    steps = int(in_place)
    was_cut_short = True
    while was_cut_short:
        place = _Place(tmp_path / "killed", logs, settings)
        assert place.before == whole.before
        staged = place.stage("scan")
        was_cut_short = True
        with _KILLER.after(steps):
            place.publish(staged, "first")
            was_cut_short = False
        _check_every_index(built_files(place.out), (whole.before, expected))

        rows = place.publish(staged, "second")

        assert _told(rows) == expected_rows, steps
        assert place.swept() == expected, steps
        shutil.rmtree(place.root)
        steps += _STRIDE
    assert steps > len(logs)


def test_completed_publication_can_be_repeated(tmp_path: Path) -> None:
    # As when the machine that ran it is lost before its rows have arrived.
    place = _Place(tmp_path, segments(5), _settings(in_place=True))
    staged = place.stage("scan")
    rows = place.publish(staged, "first")
    files = built_files(place.out)

    again = place.publish(staged, "second")

    assert _told(again) == _told(rows)
    assert built_files(place.out) == files


def test_files_of_an_abandoned_attempt_are_not_taken_as_published(tmp_path: Path) -> None:
    # The old ones with their records are still there, and must not pass for those of this run.
    place = _Place(tmp_path, segments(5), _settings(in_place=False))
    staged = place.stage("scan")
    for one in staged:
        one.remove_scratch(place.settings)

    rows = place.publish(staged, "second")

    assert {row.status for row in rows} == {"failed"}
    assert built_files(place.out) == place.before


def test_old_transaction_index_without_aborted_transactions_is_deleted(
    tmp_path: Path,
) -> None:
    in_transaction = batch(0, 1, producer_id=9, producer_epoch=0, transactional=True)
    refused = in_transaction + batch(1, 1, producer_id=9, producer_epoch=0)
    folder = tmp_path / "data" / FOLDER
    data = write(folder, {0: refused, 2: batch(2, 1)})
    index = log_path(folder, 2).with_suffix(".txnindex")
    index.write_bytes(b"of another log")
    settings = _settings(in_place=True)
    staged = list(
        stage_segments(list_dump([str(data)], topics=None).segments, settings, attempt_id="scan")
    )

    rows = list(publish_partitions([staged], settings, attempt_id="only"))

    assert [row.status for row in rows] == ["failed", "built"]
    assert "state_unknown" in str(rows[1].note)
    assert index.read_bytes() == b""
