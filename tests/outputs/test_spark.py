"""Runs on Spark that are killed, or whose tasks are: as on threads, which complete them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.outputs import test_build, test_export, test_logs, test_lookup
from tests.outputs.output_tests import OutputTests, Subject
from tests.outputs.places import NEVER, LocalPlace
from tests.support.builds import finish, kill, start, workers_of
from tests.support.campaign import sample_evenly, sample_size
from tests.support.command_line import run_here
from tests.support.failing_tasks import let_tasks_fail
from tests.support.gates import Gate, Step
from tests.support.killed_runs import Failure, KilledRuns

BUILD, LOOKUP, EXPORT = test_build.TestBuild, test_lookup.TestFolder, test_export.TestExport
IMPORT, REWRITE, RESTORE = test_logs.TestImport, test_logs.TestRewrite, test_logs.TestRestore
#: A step of each command at which it is killed; more in the campaign.
STEPS = [
    (BUILD, Step("os.rename", ".index", 3)),
    (LOOKUP, Step("os.rename", ".csv", 2)),
    (EXPORT, Step("os.rename", ".parquet", 2)),
    (IMPORT, Step("os.rename", "-0", 2)),
    (REWRITE, Step("os.rename", "-0", 2)),
    (RESTORE, Step("os.rename", "recovery-point-offset-checkpoint", 1)),
    (BUILD, Step("os.rename", ".partition.kafka-index", 2)),
    (RESTORE, Step("os.rename", "/payments-0", 1)),
    (RESTORE, Step("open", "00.log", 2)),
    (RESTORE, Step("open", "partition.metadata", 2)),
    (RESTORE, Step("open", ".journal", 1)),
    (RESTORE, Step("os.rename", ".kafka_cleanshutdown", 1)),
]
#: A task may be tried again, or not.
RETRIES = [(BUILD, "local[2,3]", 0), (LOOKUP, "local[2]", 3), (LOOKUP, "local[2,3]", 0)]


@pytest.fixture
def subject(request: pytest.FixtureRequest, tmp_path: Path, local_runs: KilledRuns) -> Subject:
    tests: OutputTests = request.param()
    return Subject(tests, LocalPlace(tmp_path, local_runs))


@pytest.mark.usefixtures("in_session")
@pytest.mark.parametrize("failure", [Failure.KILL, Failure.DISK])
# An import writes in the driver.
@pytest.mark.parametrize("subject", [BUILD, LOOKUP, EXPORT, REWRITE, RESTORE], indirect=True)
def test_failing_tasks_leave_old_or_new_output_and_rerun_completes_it(
    subject: Subject, tmp_path: Path, failure: Failure
) -> None:
    def run(step: int) -> tuple[int, str, int]:
        subject.lay_out(subject.tests.starts[-1])
        counted = tmp_path / f"counted-{step}"
        with pytest.MonkeyPatch.context() as patch:
            let_tasks_fail(patch, Path(subject.place.out), counted, step, failure)
            result = run_here(*subject.arguments_on("spark"))
        return result.returncode, result.stderr, counted.stat().st_size

    code, _, calls = run(NEVER)
    assert code == subject.tests.code
    subject.check_complete("on Spark")
    for step in sample_evenly(calls, 1, f"{type(subject.tests).__name__} {failure}"):
        code, stderr, _ = run(step)
        what = f"{failure} at call {step} of tasks\n{stderr}"
        assert code in (subject.tests.code, 3), what
        subject.check_interrupted(what)
        subject.check_completed_by_rerun(what)


@pytest.mark.usefixtures("quick_java", "spark")
@pytest.mark.parametrize(
    ("subject", "step"), STEPS[: sample_size(len(STEPS), one_in=2)], indirect=["subject"]
)
def test_killed_run_leaves_old_or_new_output_and_rerun_in_a_session_completes_it(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    subject.lay_out(subject.tests.starts[-1])
    gate = Gate(tmp_path / "gate", step)
    command, *arguments = subject.arguments_on("spark", "--master", "local[2]")
    process = start(*arguments, command_name=command, gate=gate)
    gate.wait(process)
    kill(process)

    subject.check_interrupted(f"killed at {step}")
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    result = run_here(*subject.arguments_on("spark"))
    assert result.returncode == subject.tests.code, result.stderr
    subject.check_complete(f"killed at {step}")


@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize(
    ("subject", "master", "code"), RETRIES[: 1 + sample_size(2, one_in=2)], indirect=["subject"]
)
def test_killed_workers_are_retried_or_end_the_run(
    subject: Subject, tmp_path: Path, master: str, code: int
) -> None:
    step = next(step for tests, step in STEPS if type(subject.tests) is tests)
    subject.lay_out(subject.tests.starts[-1])
    gate = Gate(tmp_path / "gate", step)
    command, *arguments = subject.arguments_on("spark", "--master", master)
    process = start(*arguments, command_name=command, gate=gate)
    gate.wait(process)
    workers = workers_of(process.pid)
    assert gate.waiting <= set(workers)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    subject.check_interrupted("workers are killed")
    gate.open()
    result = finish(process)

    assert result.returncode == code, result.stderr
    if code:
        subject.check_interrupted("the job has failed")
        subject.check_completed_by_rerun("the job has failed")
    else:
        subject.check_complete("tasks were tried again")
    if isinstance(subject.tests, BUILD):
        # A task that was tried again reports each of its segments once.
        lines = (Path(subject.place.out) / "report.json").read_text().splitlines()
        paths = [json.loads(line)["log_path"] for line in lines]
        assert len(paths) == len(set(paths)) == len(list(subject.place.data.rglob("*.log")))
