"""Builds: an `.index` is next to the time index and the transaction index of its own build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from kafka_index.core.log.recovery.build_manifest import BUILD_MANIFEST
from tests.outputs.output_tests import OLD, OutputTests, Subject
from tests.outputs.places import BucketPlace, Files
from tests.support.killed_runs import Failure
from tests.support.transactional_logs import segments, write

PARTITIONS = ("pay.x-y-0", "pay.x-y-1")
_SEGMENTS = 3


class BuildTests(OutputTests):
    """Builds of transactional logs, of which the older ones committed what is aborted now."""

    @staticmethod
    def write_logs(folder: Path, *, older: bool) -> None:
        logs = segments(_SEGMENTS, value_size=40 if older else 50, turned=older)
        for name in PARTITIONS:
            write(folder / name, logs, day=0 if older else 1)

    def write_inputs(self, data: Path, *, older: bool) -> None:
        self.write_logs(data / "dump", older=older)

    def normalized(self, files: Files) -> Files:
        # If nothing is aborted any more, an empty transaction index stays, as a broker leaves it.
        return {
            name: content
            for name, content in super().normalized(files).items()
            if content or not name.endswith(".txnindex")
        }

    def unit(self, name: str) -> str:
        return re.sub(r"\.(index|timeindex|txnindex)$", "", name)

    def check_interrupted(self, found: Files, old: Files, new: Files) -> None:
        units = self.units(self.normalized(found))
        before, after = (self.units(self.normalized(files)) for files in (old, new))
        for name, unit in units.items():
            if f"{name}.index" in unit or name in unit:
                assert unit in (before.get(name), after.get(name)), name


class TestBuild(BuildTests):
    command: ClassVar[str] = (
        "build --input {data}/dump --output {out}/indexes --report {out}/report.json"
    )


class TestBuildInPlace(BuildTests):
    command: ClassVar[str] = "build --input {out}/dump --in-place --report {out}/report.json"

    def write_inputs(self, data: Path, *, older: bool) -> None:
        """The logs are in the output."""

    def prepare(self, out: Path, *, older: bool) -> None:
        self.write_logs(out / "dump", older=older)


class TestBuildInBucket(BuildTests):
    command: ClassVar[str] = "build --input {data}/dump --output {out}/indexes"
    in_bucket: ClassVar[bool] = True

    def test_rerun_reads_no_log_of_a_finished_partition(self, subject: Subject) -> None:
        place = subject.place
        assert isinstance(place, BucketPlace)
        for start, step in subject.steps(Failure.KILL, 2):
            subject.run(step, Failure.KILL)
            manifests = [name for name in place.files() if name.endswith(BUILD_MANIFEST)]
            finished = {name.split("/")[1] for name in manifests}
            subject.check_completed_by_rerun(f"killed at call {step}")
            read = {Path(request.path).parent.name for request in place.proxy.gets(".log")}
            assert read == set(PARTITIONS) - finished or start == OLD
