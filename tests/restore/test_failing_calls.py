"""Restores of which any call fails: no broker starts on a part, and a rerun tells all losses."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_index.restore.journal import JOURNAL_FILE
from tests.support.campaign import drawn
from tests.support.command_line import DUMP, SETTINGS, Argument, run_here
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.restoring import MARKER, contents, copy_dump, logs

DAMAGED = "audit.trail-0"
PARTITIONS = (DAMAGED, "payments-0", "__consumer_offsets-0", "__cluster_metadata-0")
IDENTITY = "version=1\ncluster.id=fresh\nnode.id=7\ndirectory.id=ZZZZZZZZZZZZZZZZZZZZ{}\n"
#: A restore of this dump has fewer calls, and fewer still that need room.
_LAST_STEP = {Failure.KILL: 394, Failure.DISK: 420, Failure.FULL: 280}
_DRAWN = drawn(300, one_in=15)
_DAMAGE, _ENVIRONMENT, _USAGE = 1, 3, 2


@dataclass(frozen=True)
class Places:
    """A formatted output, a formatted controller, and where the report goes."""

    root: Path

    def make(self) -> Places:
        for name, tag in (("out", "Ag"), ("metadata", "Bg")):
            (self.root / name).mkdir(parents=True)
            (self.root / name / "meta.properties").write_text(IDENTITY.format(tag))
        shutil.copy2(DUMP / "bootstrap.checkpoint", self.root / "metadata")
        (self.root / "reports").mkdir()
        return self

    @property
    def output(self) -> Path:
        return self.root / "out"

    def command(self, dump: Path) -> list[Argument]:
        return [
            *("restore", "--input", dump, "--config", SETTINGS, "--threads", 1, "--quiet"),
            *("--output", self.output, "--seed", self.root / "metadata"),
            *("--report", self.root / "reports/restore.json"),
            *("--summary", self.root / "reports/summary.json"),
        ]

    def written(self) -> dict[str, bytes]:
        """All files but the summary, which has times; paths of this place are those of any."""
        return {
            name: data.replace(str(self.root).encode(), b"ROOT")
            for name, data in contents(self.root).items()
            if "summary" not in name
        }


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of which a restore loses records."""
    dump = copy_dump(tmp_path_factory.mktemp("failing") / "dump", *PARTITIONS)
    log = logs(dump / DAMAGED)[1]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    return dump


@pytest.fixture(scope="module")
def whole(dump: Path) -> dict[str, bytes]:
    """What a restore writes that nothing interrupts."""
    places = Places(dump.parent / "whole").make()
    assert run_here(*map(str, places.command(dump))).returncode == _DAMAGE
    return places.written()


@pytest.fixture(scope="module")
def runs(dump: Path) -> Iterator[KilledRuns]:
    with KilledRuns(*Places(dump.parent / "warm-up").make().command(dump)) as runs:
        yield runs


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("number", range(_DRAWN))
def test_no_broker_starts_on_a_part_and_a_rerun_is_as_if_nothing_had_failed(
    tmp_path: Path,
    dump: Path,
    whole: dict[str, bytes],
    runs: KilledRuns,
    number: int,
    failure: Failure,
) -> None:
    places = Places(tmp_path / "root").make()
    step = 1 + number * _LAST_STEP[failure] // _DRAWN
    code = runs.failing(places.root, step, failure, *places.command(dump))

    assert code in (_DAMAGE, _ENVIRONMENT, -signal.SIGKILL)
    written = places.written()
    is_untouched = not any(name.startswith("out/payments") for name in written)
    if (places.output / "meta.properties").exists() and not is_untouched:
        # All that a broker reads is there, and all that was lost is told.
        missing = {name for name in whole if written.get(name) != whole[name]}
        assert missing <= {f"out/{MARKER}"}
    if (places.output / MARKER).exists():
        assert whole.items() <= written.items()
    is_over = (places.output / MARKER).exists() and not (places.output / JOURNAL_FILE).exists()
    if not is_over:
        assert code != _DAMAGE
        assert run_here(*map(str, places.command(dump))).returncode == _DAMAGE
    assert {name: places.written().get(name) for name in whole} == whole
    assert is_over or places.written().keys() == whole.keys()


def test_a_restore_is_over_once_its_exit_code_says_so(
    tmp_path: Path, dump: Path, whole: dict[str, bytes], runs: KilledRuns
) -> None:
    places = Places(tmp_path / "root").make()

    step = _LAST_STEP[Failure.DISK]
    assert runs.failing(places.root, step, Failure.DISK, *places.command(dump)) == _DAMAGE
    assert places.written() == whole
    assert run_here(*map(str, places.command(dump))).returncode == _USAGE
